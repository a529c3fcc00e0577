/* Triplets with a hinge for ψ, by sorted rows (mathematics §9), included by module.c like primitive.h. The kernel of t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin and δ the slope. Of a
 * row there are, in ascending order and without `own`, x less its median, the columns that they came from, and `low`,
 * the first negative that each does not satisfy as a positive. A row is summed in doubles, or if its exponents have no room there with numbers of any size (`wide`), by the same
 * code (hinge_row.h). */
#ifndef HINGE
#define HINGE
/* The number m · 2^{256 e}: |m| from 2^−128 to 2^128 but for sums, which are a little larger. */
typedef struct {
    double m, e;
} wide;
#define UNIT 177.44567822334599921 /* log 2^256 */
static const wide NOTHING = {0, -1e9};

INLINE wide wide_of(double m, double e) { /* at most one step from its range */
    const double size = fabs(m);
    if (size >= 0x1p128) return (wide){m * 0x1p-256, e + 1};
    return size > 0 && size < 0x1p-128 ? (wide){m * 0x1p256, e - 1} : size == 0 ? NOTHING : (wide){m, e};
}
INLINE wide times(wide a, wide b) { return wide_of(a.m * b.m, a.e + b.e); }
INLINE wide plus(wide a, wide b) { /* of two steps between them nothing is left */
    const double apart = a.e - b.e;
    if (apart == 0) return (wide){a.m + b.m, a.e};
    return apart > 0 ? (wide){a.m + (apart == 1 ? b.m * 0x1p-256 : 0), a.e}
                     : (wide){b.m + (apart == -1 ? a.m * 0x1p-256 : 0), b.e};
}
INLINE double narrow(wide a) {
    return a.e == 0 ? a.m : a.e < -4 ? 0 : a.e > 4 ? a.m * INFINITY : ldexp(a.m, 256 * (int)a.e);
}
INLINE double wide_log(wide a) { return a.m == 0 ? -INFINITY : log(a.m) + a.e * UNIT; }
INLINE wide wide_exp(double x) { /* what is no number outweighs all */
    const double e = nearbyint(x / UNIT);
    return x == -INFINITY ? NOTHING : x != x ? (wide){x, 1e9} : (wide){exp(x - e * UNIT), e};
}

/* For each entry of a sorted row the last positive by which it is not satisfied as a negative: the last r with
 * low_r ≤ it. `low` rises. */
INLINE void last_positives(long length, const uint32_t *low, uint32_t *high) {
    memset(high, 0, length * sizeof *high);
    for (long r = 0; r < length; r++) high[low[r]] = (uint32_t)r;
    for (long r = 1; r < length; r++) high[r] = high[r] > high[r - 1] ? high[r] : high[r - 1];
}

/* What a pass is about: the form T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk and what is wanted of it. Here A_i = e^φ_i w_i
 * and f_j, g_j stand for e^{f_j} wf_j, e^{g_j} wg_j; weights of any sign, NULL for 1.
 *   sums:  A_i ∂T/∂A_i of each row; with `log_mass` log ∂T/∂A_i instead, from which A_i = mass_i / (∂T/∂A_i) is set
 *          here (marginal 1 of §2).
 *   to_f, to_g:  f ∂T/∂f and g ∂T/∂g, or (`logs`) the logarithms of ∂T/∂f and ∂T/∂g. */
typedef struct {
    long m, room, logs; /* room: of an array of a row, no power of two: addresses 4096 bytes apart collide */
    double gap, slope;
    const uint32_t *column, *low;
    const int64_t *own;
    const double *width, *phi, *weight, *log_mass;
    double *sums, mids; /* mids: the logarithm of what F and G, together, are relative to */
} hinge_form;

#define number double
#define KIND(name) narrow_##name
#define TIMES(a, b) ((a) * (b))
#define PLUS(a, b) ((a) + (b))
#define EXP exp
#define LOG log
#define ZERO 0
#define OF(a) (a)
#define DOUBLE(a) (a)
#include "hinge_row.h"
#define number wide
#define KIND(name) wide_##name
#define TIMES times
#define PLUS plus
#define EXP wide_exp
#define LOG wide_log
#define ZERO NOTHING
#define OF(a) wide_of(a, 0)
#define DOUBLE narrow
#include "hinge_row.h"

/* Scalings e^{log − mid} · weight, as wide numbers and as doubles. Returns mid, the middle of the logarithms, and adds
 * their range to `range`. */
static double scale(const double *logs, const double *weights, long m, wide *made, double *narrowed, double *range) {
    double least = INFINITY, most = -INFINITY;
    for (long j = 0; j < m; j++) {
        most = logs[j] > most ? logs[j] : most;
        least = logs[j] < least && logs[j] > -INFINITY ? logs[j] : least;
    }
    const double mid = most > -INFINITY ? least + (most - least) / 2 : 0;
    for (long j = 0; j < m; j++) {
        const wide one = wide_exp(logs[j] - mid);
        made[j] = weights ? wide_of(one.m * weights[j], one.e) : one;
        narrowed[j] = narrow(made[j]);
    }
    *range += most - least;
    return mid;
}

/* Columns of all threads, in doubles and as wide numbers, to `out`. */
static void finish(const hinge_form *p, double mid, const wide *scalings, const double *narrows, const wide *wides,
                   long threads, double *out) {
    for (long j = 0; out && j < p->m; j++) {
        wide sum = NOTHING;
        for (long k = j; k < 2 * threads * p->m; k += 2 * p->m) sum = plus(sum, plus(wide_of(narrows[k], 0), wides[k]));
        out[j] = p->logs ? wide_log(sum) - mid : narrow(times(sum, scalings[j]));
    }
}
#endif

typedef struct {
    bits key; /* in the order of the numbers that it stands for */
    uint32_t column;
} NAME(word);

/* Sort the rows of s byte by byte from the last; x = c s less the median of each row takes their place. A triplet
 * is satisfied if t > γ by more than a few roundings of s: equal samples, whose similarities are rounded each in
 * its own way, are equal here. `width`: twice the largest |x|. */
FAST long NAME(hinge_sort)(long n, long m, double gap, double factor, double rounding, real *X, const int64_t *own,
                           uint32_t *column, uint32_t *low, double *width, double *work, long threads) {
    enum { BYTES = sizeof(real) };
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        NAME(word) *word = (NAME(word) *)(work + omp_get_thread_num() * 5 * m), *other = word + m;
        real *ordered = (real *)(other + m), *s = X + i * m;
        uint32_t count[BYTES][256] = {{0}};
        const long self = own[i], length = self < 0 ? m : m - 1;
        for (long j = 0, r = 0; j < m; j++) {
            if (j == self) continue;
            bits key;
            memcpy(&key, s + j, sizeof key);
            key ^= key >> (8 * BYTES - 1) ? ~(bits)0 : (bits)1 << (8 * BYTES - 1);
            for (int byte = 0; byte < BYTES; byte++) count[byte][key >> 8 * byte & 255]++;
            word[r++] = (NAME(word)){key, (uint32_t)j};
        }
        for (int byte = 0; byte < BYTES; byte++) {
            uint32_t *to = count[byte], next = 0;
            if (length == 0 || to[word[0].key >> 8 * byte & 255] == length) continue;
            for (int digit = 0; digit < 256; digit++) {
                const uint32_t some = to[digit];
                to[digit] = next, next += some;
            }
            for (long r = 0; r < length; r++) other[to[word[r].key >> 8 * byte & 255]++] = word[r];
            NAME(word) *swapped = word; word = other, other = swapped;
        }
        for (long r = 0; r < length; r++) ordered[r] = s[word[r].column];
        const double middle = length ? ordered[length / 2] : 0; /* most scores are near the median: digits are there */
        const double least = length ? ordered[0] : 0, most = length ? ordered[length - 1] : 0;
        const double margin = gap + rounding * factor * fmax(fabs(least), fabs(most));
        width[i] = 2 * factor * fmax(most - middle, middle - least);
        for (long r = 0, k = 0; r < length; r++) {
            while (k < r && factor * ((double)ordered[r] - ordered[k]) > margin) k++; /* of s: x has fewer digits */
            s[r] = (real)(factor * (ordered[r] - middle));
            column[i * m + r] = word[r].column, low[i * m + r] = (uint32_t)k;
        }
    }
    return 0;
}

/* All rows of a pass; `into` receives c ∂T/∂x. Arrays: x, columns, low, own, width, φ, its weights, f, wf, g, wg,
 * log_mass, sums, to_f, to_g, into, and `work`: 6 m numbers and 6 m a thread that threads share, then 27 (m + 32) a
 * thread. Returns how many rows needed wide numbers. */
FAST long NAME(hinge_rows)(long n, long m, long logs, double gap, double slope, double c, void **a, long threads) {
    hinge_form form = {.m = m, .room = (m + 31) / 8 * 8, .logs = logs, .gap = gap, .slope = slope, .column = a[1],
                       .low = a[2], .own = a[3], .width = a[4], .phi = a[5], .weight = a[6], .log_mass = a[11],
                       .sums = a[12]};
    const hinge_form *p = &form;
    const long room = p->room;
    real *X = a[0], *into = a[15];
    double *F = a[16], *G = F + m, *columns = G + m, range = 0;
    wide *wides = (wide *)(columns + 2 * threads * m), *F_ = wides + 2 * threads * m, *G_ = F_ + m;
    double *works = (double *)(G_ + m);
    long number = 0;
    const double mid_f = scale(a[7], a[8], m, F_, F, &range), mid_g = scale(a[9], a[10], m, G_, G, &range);
    form.mids = mid_f + mid_g;
    for (long k = 0; k < 2 * threads * m; k++) columns[k] = 0, wides[k] = NOTHING;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(+ : number)
    for (long i = 0; i < n; i++) {
        const long to_f = 2 * omp_get_thread_num() * m, to_g = to_f + m, length = p->own[i] < 0 ? m : m - 1;
        double *forces = works + omp_get_thread_num() * 27 * (m + 32), *up = forces + room, *down = up + 2 * room;
        const double steep = (1 + slope) * p->width[i], A = p->log_mass ? 0 : p->phi[i] + p->mids;
        const int fits = 2 * (steep + gap) + range <= 600 && (sizeof(real) == 8 || steep <= 160) &&
                         (fabs(A) <= 300 || A == -INFINITY);
        const real *x = X + i * m;
        int done = 0;
        if (fits) {
#pragma omp simd
            for (long r = 0; r < length; r++) {
                const real high = NAME(exponential)((real)(1 + slope) * x[r]), flat = NAME(exponential)((real)slope * x[r]);
                up[r] = high, up[room + r] = flat, down[r] = 1 / high, down[room + r] = 1 / flat;
            }
            done = narrow_row(p, i, F, G, up, down, a[13] ? columns + to_f : NULL, a[14] ? columns + to_g : NULL,
                              into ? forces : NULL, down + 2 * room);
        }
        if (!done) {
            wide *rise = (wide *)up, *fall = rise + 2 * room;
            for (long r = 0; r < length; r++)
                for (long k = r; k < 2 * room; k += room) {
                    rise[k] = wide_exp((k == r ? 1 + slope : slope) * x[r]);
                    fall[k] = (wide){1 / rise[k].m, -rise[k].e};
                }
            wide_row(p, i, F_, G_, rise, fall, a[13] ? wides + to_f : NULL, a[14] ? wides + to_g : NULL,
                     into ? forces : NULL, fall + 2 * room);
            number++;
        }
        for (long r = 0; into && r < length; r++) into[i * m + p->column[i * m + r]] += (real)(c * forces[r]);
    }
    finish(p, mid_f, F_, columns, wides, threads, a[13]);
    finish(p, mid_g, G_, columns + m, wides + m, threads, a[14]);
    return number;
}

/* Σ_jk plus_j minus_k (max(0, γ − t) − δt) of each row, and its derivative by x: of a positive
 * −(Σ_{t ≤ γ} minus_k + δ Σ minus_k), of a negative the same of positives with the other sign. `work`: 4 (m + 1) a
 * thread. */
FAST long NAME(hinge_costs)(long n, long m, double gap, double slope, const real *X, const uint32_t *columns,
                            const uint32_t *lows, const int64_t *own, const double *plus, const double *minus,
                            double *costs, real *gradient, double *work, long threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        const uint32_t *column = columns + i * m, *low = lows + i * m;
        const long length = own[i] < 0 ? m : m - 1;
        const double *near = plus + i * m, *far = minus + i * m;
        double *before = work + omp_get_thread_num() * 4 * (m + 1), *after = before + m + 1, total = 0;
        uint32_t *high = (uint32_t *)(after + m + 1);
        last_positives(length, low, high);
        before[0] = after[length] = 0;
        for (long r = 0; r < length; r++) before[r + 1] = before[r] + near[column[r]];
        for (long r = length - 1; r >= 0; r--) after[r] = after[r + 1] + far[column[r]];
        if (own[i] >= 0) gradient[i * m + own[i]] = 0;
        for (long r = 0; r < length; r++) {
            const double x = X[i * m + r], a = near[column[r]], b = far[column[r]];
            const double unmet = after[low[r]], raised = unmet + slope * after[0];
            const double lowered = before[high[r] + 1] + slope * before[length];
            total += a * (gap * unmet - x * raised) + b * x * lowered;
            gradient[i * m + column[r]] = (real)(b * lowered - a * raised);
        }
        costs[i] = total;
    }
    return 0;
}
