/* Triplets with a hinge for ψ, by sorted rows (mathematics §9), included by module.c like primitive.h.
 *
 * The kernel of t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin and δ the slope. Of a
 * row there are `x`, less its median, and for every column three places in ascending order: its own, `low`, that of
 * the first negative that it does not satisfy as a positive, and `high`, that of the last positive by which it is
 * not satisfied as a negative. `own` is left out, with the place after the last.
 *
 * A row is done in one of two ways, each by itself. In doubles: running sums over four quarters of the row side by
 * side, from which k = j is taken away. If its exponents have no room there, or if what is taken away is nearly all
 * of a sum, with numbers of any size from which nothing is taken away (`wide`). */
#ifndef HINGE
#define HINGE
typedef double pair __attribute__((vector_size(16), aligned(sizeof(double)), may_alias));
typedef double pairs __attribute__((vector_size(64), aligned(sizeof(double)), may_alias));
typedef int64_t choice __attribute__((vector_size(64), aligned(sizeof(double)), may_alias));

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

/* Places, of two or four bytes. In quarters side by side, the next rank is four places on. */
INLINE long at(const void *places, long j, int four) {
    return four ? ((const uint32_t *)places)[j] : ((const uint16_t *)places)[j];
}
INLINE void put(void *places, long j, long place, int four) {
    if (four) ((uint32_t *)places)[j] = (uint32_t)place;
    else ((uint16_t *)places)[j] = (uint16_t)place;
}
static inline long quarter_of(long m) { return (m + 3) / 4; }
static inline long place_of(long rank, long quarter) { return 4 * (rank % quarter) + rank / quarter; }
static inline long rank_of(long place, long quarter) { return place % 4 * quarter + place / 4; }

/* Running sums over the places: of the first numbers from the start, of the second from the end, with that of the
 * place itself or (`before`, `behind`) without. All quarters go at once, each from the sum of those ahead of it. */
INLINE void running_sums(int before, int behind, long quarter, pairs *sums) {
    const choice first = {-1, 0, -1, 0, -1, 0, -1, 0};
    pairs total = {0}, odd = {0}, ahead = {0}, after = {0};
    for (long o = 0; o + 1 < quarter; o += 2) total += sums[o], odd += sums[o + 1];
    if (quarter % 2) total += sums[quarter - 1];
    total += odd;
    for (int lane = 2; lane < 8; lane += 2) {
        ahead[lane] = ahead[lane - 2] + total[lane - 2];
        after[7 - lane] = after[9 - lane] + total[9 - lane];
    }
    for (long o = 0, end = quarter - 1; o < quarter; o++, end--) {
        pairs here = sums[o], next = ahead + here;
        sums[o] = (pairs)(((choice)(before ? ahead : next) & first) | ((choice)here & ~first));
        ahead = next;
        here = sums[end], next = after + here;
        sums[end] = (pairs)(((choice)here & first) | ((choice)(behind ? after : next) & ~first));
        after = next;
    }
}

/* What a pass is about: the form T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk and what is wanted of it. Here A_i = e^φ_i w_i
 * and f_j, g_j stand for e^{f_j} wf_j, e^{g_j} wg_j; weights of any sign, NULL for 1.
 *   sums:  A_i ∂T/∂A_i of each row; with `log_mass` log ∂T/∂A_i instead, from which A_i = mass_i / (∂T/∂A_i) is set
 *          here (marginal 1 of §2).
 *   to_f, to_g:  f ∂T/∂f and g ∂T/∂g, or (`logs`) the logarithms of ∂T/∂f and ∂T/∂g.
 *   e:     the form is T(A, f, g) + T(B, e, g), B_i = −A_i (sums_i + A_i ∂T/∂A_i) / mass_i, and `to_f` is
 *          e ∂/∂e: what the update of A has to do in the adjoint, once the weights of f are known (§4, unrolled). */
typedef struct {
    long n, m, four, logs;
    double gap, slope, scale;
    const void *places;
    const int64_t *own;
    const double *width, *phi, *weight, *f, *wf, *g, *wg, *e, *log_mass, *mass;
    double *sums, *to_f, *to_g, mid_f, mid_g, range;
    double *F, *G, *E;    /* scalings relative to e^mid */
    wide *F_, *G_, *E_;   /* the same, not relative to anything */
} hinge_form;

INLINE const void *places_of(const hinge_form *p, int kind, long i) {
    return (const char *)p->places + (kind * p->n + i) * p->m * (p->four ? 4 : 2);
}

static void extend(const double *logs, long m, double *least, double *most) {
    for (long j = 0; logs && j < m; j++) {
        *most = logs[j] > *most ? logs[j] : *most;
        *least = logs[j] < *least && logs[j] > -INFINITY ? logs[j] : *least;
    }
}
static void scale(const double *logs, const double *weights, long m, double mid, double *made, wide *made_wide) {
    const wide unit = wide_exp(-mid);
    for (long j = 0; logs && j < m; j++) {
        const wide one = wide_exp(logs[j]);
        made_wide[j] = weights ? wide_of(one.m * weights[j], one.e) : one;
        made[j] = narrow(times(made_wide[j], unit));
    }
}
/* Scalings from potentials; `work`: 9 m. */
static void prepare(hinge_form *p, double *work) {
    const long m = p->m;
    double low_f = INFINITY, high_f = -INFINITY, low_g = INFINITY, high_g = -INFINITY;
    extend(p->f, m, &low_f, &high_f), extend(p->e, m, &low_f, &high_f), extend(p->g, m, &low_g, &high_g);
    p->mid_f = high_f > -INFINITY ? low_f + (high_f - low_f) / 2 : 0;
    p->mid_g = high_g > -INFINITY ? low_g + (high_g - low_g) / 2 : 0;
    p->range = high_f - low_f + high_g - low_g;
    p->F = work, p->G = work + m, p->E = work + 2 * m;
    p->F_ = (wide *)(work + 3 * m), p->G_ = p->F_ + m, p->E_ = p->G_ + m;
    scale(p->f, p->wf, m, p->mid_f, p->F, p->F_), scale(p->g, p->wg, m, p->mid_g, p->G, p->G_);
    scale(p->e, NULL, m, p->mid_f, p->E, p->E_);
}

/* Σ_{k < bound_r} of `flat` and Σ_{k ≥ bound_r, k ≠ r} of `steep`, each times `values`, for bounds that rise and do
 * not exceed r; or (`down`) with both ends of the row exchanged. A window [bound, r) is the sum from its start to a
 * pivot and from there to its end. The first pivot is 0, the next one the first place whose window has left it.
 * So whole_j = out_flat_j Σ + e^{−γ} out_steep_j Σ, and what of it falls with t. */
static void wide_half(const hinge_form *p, int down, long i, const wide *in, const wide *values, const wide *out,
                      wide *whole, wide *fall, wide *work) {
    const long m = p->m, length = p->own[i] < 0 ? m : m - 1, last = length - 1, quarter = quarter_of(m);
    const wide *flat = in + m, *out_flat = out + m, gap = wide_exp(-p->gap), slope = wide_of(p->slope, 0);
    const void *place = places_of(p, 0, i), *bounds = places_of(p, down ? 2 : 1, i);
    wide *back = work, *prefix = back + m, *after = prefix + m, all = NOTHING, rest = NOTHING, sum = NOTHING;
    uint32_t *column = (uint32_t *)(after + m), *bound = column + m, *pivots = bound + m;
    long number = 0, part;
    for (long j = 0; j < m; j++) {
        const long rank = rank_of(at(place, j, p->four), quarter), end = rank_of(at(bounds, j, p->four), quarter);
        if (rank >= length) whole[j] = fall[j] = NOTHING;
        else column[down ? last - rank : rank] = j, bound[down ? last - rank : rank] = down ? last - end : end;
    }
    for (long r = 0; r < length; r++)
        if (number == 0 || bound[r] > pivots[number - 1]) pivots[number++] = r;
    part = number - 1;
    for (long r = last; r >= 0; r--) {
        const wide term = times(in[column[r]], values[column[r]]);
        after[r] = all, all = plus(all, term);
        back[r] = rest = plus(rest, term); /* from r to the next pivot */
        if (r == pivots[part]) rest = NOTHING, part--;
    }
    part = 0, rest = NOTHING;
    for (long r = 0; r < length; r++) {
        const long j = column[r];
        if (part < number && r == pivots[part]) back[r] = rest = NOTHING, part++; /* windows from the pivot on */
        prefix[r] = sum;
        const wide others = plus(after[r], plus(back[bound[r]], rest)), falls = times(gap, times(out[j], others));
        whole[j] = plus(times(out_flat[j], prefix[bound[r]]), falls);
        fall[j] = plus(falls, times(slope, whole[j]));
        sum = plus(sum, times(flat[j], values[j])), rest = plus(rest, times(in[j], values[j]));
    }
}

INLINE void add_wide(long m, wide weight, const wide *numbers, double *columns) {
    for (long j = 0; j < m; j++) {
        const wide sum = plus((wide){columns[m + j], columns[2 * m + j]}, times(weight, numbers[j]));
        columns[m + j] = sum.m, columns[2 * m + j] = sum.e;
    }
}

/* Columns of all threads, each in units of e^−mid and as wide numbers (three rows), to `out`. */
static void finish(const hinge_form *p, double mid, const wide *scalings, const double *columns, long threads, double *out) {
    const long m = p->m;
    const wide unit = wide_exp(-mid);
    for (long j = 0; out && j < m; j++) {
        wide sum = NOTHING;
        for (const double *own = columns + j; own < columns + 3 * threads * m; own += 3 * m)
            sum = plus(sum, plus(times(wide_of(own[0], 0), unit), (wide){own[m], own[2 * m]}));
        out[j] = p->logs ? wide_log(sum) : narrow(times(sum, scalings[j]));
    }
}

/* A row with wide numbers; x in double; its gradient replaces x. `work`: 13 m + 3 m/2 wide numbers. */
static void wide_row(const hinge_form *p, long i, double *x, double *to_f, double *to_g, int forces, wide *work) {
    const long m = p->m;
    wide *up = work, *down = up + 2 * m, *whole = down + 2 * m, *fall = whole + m, *far = fall + m, *mixed = far + m;
    wide *spare = mixed + m, A = NOTHING, sum = NOTHING, ratio;
    const wide *near = p->F_;
    for (long j = 0; j < m; j++) {
        up[j] = wide_exp((1 + p->slope) * x[j]), up[m + j] = wide_exp(p->slope * x[j]);
        down[j] = (wide){1 / up[j].m, -up[j].e}, down[m + j] = (wide){1 / up[m + j].m, -up[m + j].e};
    }
    if (!p->log_mass) A = times(wide_exp(p->phi[i]), wide_of(p->weight ? p->weight[i] : 1, 0));
    if (to_f || forces || p->sums) {
        wide_half(p, 0, i, down, p->G_, up, whole, fall, spare);
        for (long j = 0; j < m; j++) sum = plus(sum, times(p->F_[j], whole[j]));
        ratio = (wide){1, 0};
        if (p->log_mass) {
            p->sums[i] = wide_log(sum);
            if (p->log_mass[i] > -INFINITY) A = wide_exp(p->log_mass[i] - p->sums[i]);
        }
        else if (p->e) {
            ratio = wide_of(p->mass[i] > 0 ? -(p->sums[i] + narrow(times(A, sum))) / p->mass[i] : 0, 0);
            for (long j = 0; j < m; j++) mixed[j] = plus(near[j], times(ratio, p->E_[j]));
            near = mixed;
        } else if (p->sums)
            p->sums[i] = narrow(times(A, sum));
        if (to_f) add_wide(m, times(A, ratio), whole, to_f);
        for (long j = 0; forces && j < m; j++) x[j] = narrow(times(A, times(near[j], fall[j])));
    }
    if (!to_g && !forces) return;
    wide_half(p, 1, i, up, near, down, whole, far, spare);
    if (to_g) add_wide(m, A, whole, to_g);
    for (long j = 0; forces && j < m; j++) x[j] -= narrow(times(A, times(p->G_[j], far[j])));
}
#endif

typedef struct {
    bits key; /* in the order of the numbers that it stands for */
    uint32_t column;
} NAME(word);

/* Sort the rows of s, and x = c s less the median of each row (in the place of s, if that is the same array), byte by byte
 * from the last. A triplet is satisfied if t > γ by more than a few roundings of s: equal samples, whose similarities
 * are rounded each in its own way, are equal here. `width`: twice the largest |x|. */
FAST long NAME(hinge_sort)(long n, long m, long four, double gap, double factor, double rounding, const real *S,
                           const int64_t *own, real *X, void *places, double *width, double *work, long threads) {
    enum { BYTES = sizeof(real) };
    const long quarter = quarter_of(m), bytes = four ? 4 : 2;
    uint32_t *by_rank = (uint32_t *)(work + threads * 6 * m);
    for (long r = 0; r < m; r++) by_rank[r] = (uint32_t)place_of(r, quarter);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        double *mine = work + omp_get_thread_num() * 6 * m;
        NAME(word) *word = (NAME(word) *)mine, *other = word + m;
        real *ordered = (real *)(mine + 4 * m), *x = X + i * m;
        uint32_t count[BYTES][256] = {{0}}, *below = (uint32_t *)(mine + 5 * m), *until = below + m;
        char *place = (char *)places + i * m * bytes, *low = place + n * m * bytes, *high = low + n * m * bytes;
        const real *s = S + i * m;
        const long self = own[i], length = self < 0 ? m : m - 1;
        double least = INFINITY, most = -INFINITY;
        for (int side = 0; side < 2; side++) { /* before own, and behind it (all are if there is none) */
            const long end = side ? m : self;
#pragma omp simd reduction(min : least) reduction(max : most)
            for (long j = side ? self + 1 : 0; j < end; j++)
                least = s[j] < least ? s[j] : least, most = s[j] > most ? s[j] : most;
        }
        const double margin = gap + rounding * factor * fmax(fabs(least), fabs(most));
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
            NAME(word) *swapped = word;
            word = other, other = swapped;
        }
        for (long r = 0; r < length; r++) ordered[r] = s[word[r].column];
        const double middle = length ? ordered[length / 2] : 0; /* most scores are near the median: digits are there */
        for (long j = 0; j < m; j++) x[j] = j == self ? 0 : (real)(factor * (s[j] - middle));
        width[i] = length ? 2 * factor * fmax(most - middle, middle - least) : 0;
        memset(until, 0, m * sizeof *until);
        for (long r = 0, k = 0; r < length; r++) {
            while (k < r && factor * ((double)ordered[r] - ordered[k]) > margin) k++; /* of s: x has fewer digits */
            below[r] = (uint32_t)k, until[k] = (uint32_t)r;
        }
        for (long r = 0, q = 0; r < length; r++) {
            const long j = word[r].column;
            q = until[r] > q ? until[r] : q; /* the last positive with below ≤ r */
            put(place, j, by_rank[r], four), put(low, j, by_rank[below[r]], four), put(high, j, by_rank[q], four);
        }
        /* Nothing is before the first place or after the last: a sample satisfies nobody in its row. */
        if (self >= 0) {
            put(place, self, by_rank[length], four), put(high, self, by_rank[length], four);
            put(low, self, by_rank[0], four);
        }
    }
    return 0;
}

/* For all columns the running sums of pairs (flat_j values_j, steep_j values_j), or in the other order (`down`), at
 * the places of their bounds, without steep_j values_j itself: see `wide_half`. Returns whether digits were lost. */
INLINE int NAME(half)(int down, int sloped, int four, const hinge_form *p, long i, const real *steep, const real *flat,
                      const double *values, const real *out, const real *out_flat, const double *partner,
                      double *whole, double *fall, double *total, double *running) {
    enum { FEW = 64 };
    const long m = p->m, quarter = quarter_of(m), self = p->own[i];
    const void *place = places_of(p, 0, i), *bounds = places_of(p, down ? 2 : 1, i);
    const double gap = exp(-p->gap), slope = p->slope, most = sizeof(real) == 4 ? 1e7 : 1e3;
    double few[2 * FEW] __attribute__((aligned(64))), sum = 0;
    int lost = 0;
    for (long start = 0; start < m; start += FEW) { /* few enough to stay in the nearest cache */
        const long some = m - start < FEW ? m - start : FEW;
#pragma omp simd
        for (long q = 0; q < some; q++) {
            const long j = start + q;
            few[2 * q + down] = sloped ? flat[j] * values[j] : values[j];
            few[2 * q + !down] = steep[j] * values[j];
        }
#pragma GCC unroll 4
        for (long q = 0; q < some; q++) *(pair *)(running + 2 * at(place, start + q, four)) = *(pair *)(few + 2 * q);
    }
    if (self >= 0) *(pair *)(running + 2 * at(place, self, four)) = (pair){0, 0};
    for (long rank = m; rank < 4 * quarter; rank++) *(pair *)(running + 2 * place_of(rank, quarter)) = (pair){0, 0};
    running_sums(!down, down, quarter, (pairs *)running);
    for (long start = 0; start < m; start += FEW) {
        const long some = m - start < FEW ? m - start : FEW;
#pragma GCC unroll 4
        for (long q = 0; q < some; q++) *(pair *)(few + 2 * q) = *(pair *)(running + 2 * at(bounds, start + q, four));
#pragma omp simd reduction(| : lost) reduction(+ : sum)
        for (long q = 0; q < some; q++) {
            const long j = start + q;
            const double tilt = gap * out[j], excluded = steep[j] * values[j], falls = tilt * (few[2 * q + !down] - excluded);
            const double all = falls + (sloped ? out_flat[j] * few[2 * q + down] : few[2 * q + down]);
            lost |= fabs(tilt * excluded) > most * fabs(all);
            whole[j] = all, sum += partner[j] * all;
            fall[j] = sloped ? falls + slope * all : falls;
        }
    }
    *total = sum;
    return lost;
}

/* A row in doubles. Returns 0, with nothing done, if it loses digits. */
INLINE int NAME(narrow_row)(int sloped, int four, const hinge_form *p, long i, const real *x, double *to_f, double *to_g,
                            real *into, double *work) {
    const long m = p->m, room = (m + 31) / 8 * 8; /* no power of two: addresses 4096 bytes apart collide */
    const double *near = p->F, *G = p->G, mids = p->mid_f + p->mid_g;
    double *whole = work, *fall = whole + room, *far = fall + room, *far_fall = far + room, *mixed = far_fall + room;
    double *spare = mixed + room, sum = 0, unused, A = 0, ratio = 1;
    real *up = (real *)(spare + 4 * room), *down = up + room, *up_flat = down + room, *down_flat = up_flat + room;
#pragma omp simd
    for (long j = 0; j < m; j++) up[j] = NAME(exponential)((real)(1 + p->slope) * x[j]), down[j] = 1 / up[j];
    if (sloped)
#pragma omp simd
        for (long j = 0; j < m; j++) up_flat[j] = NAME(exponential)((real)p->slope * x[j]), down_flat[j] = 1 / up_flat[j];
    if (p->own[i] >= 0) up[p->own[i]] = down[p->own[i]] = 0;
    if (!p->log_mass) A = exp(p->phi[i] + mids) * (p->weight ? p->weight[i] : 1);
    if (to_f || into || p->sums) {
        if (NAME(half)(0, sloped, four, p, i, down, down_flat, G, up, up_flat, near, whole, fall, &sum, spare)) return 0;
        if (p->log_mass) {
            if (!(sum > 1e-290 && sum < 1e290)) return 0;
            A = exp(p->log_mass[i]) / sum;
        } else if (p->e) {
            ratio = p->mass[i] > 0 ? -(p->sums[i] + A * sum) / p->mass[i] : 0;
#pragma omp simd
            for (long j = 0; j < m; j++) mixed[j] = near[j] + ratio * p->E[j];
            near = mixed;
        }
    }
    if ((to_g || into) &&
        NAME(half)(1, sloped, four, p, i, up, up_flat, near, down, down_flat, G, far, far_fall, &unused,
                   spare)) return 0;
    if (p->log_mass) p->sums[i] = log(sum) + mids;
    else if (p->sums && !p->e) p->sums[i] = A * sum;
    if (to_f)
#pragma omp simd
        for (long j = 0; j < m; j++) to_f[j] += A * ratio * whole[j];
    if (to_g)
#pragma omp simd
        for (long j = 0; j < m; j++) to_g[j] += A * far[j];
    if (into)
#pragma omp simd
        for (long j = 0; j < m; j++) into[j] += (real)(p->scale * A * (near[j] * fall[j] - G[j] * far_fall[j]));
    return 1;
}

/* All rows of a pass; `into` receives c ∂T/∂x. Arrays: see hinge_form; `work`: (9 + 6 threads) m numbers that threads
 * share, then 26 m + 512 a thread. Returns how many rows needed wide numbers. */
FAST long NAME(hinge_rows)(long n, long m, long four, long logs, double gap, double slope, double scale, void **a,
                           long threads) {
    hinge_form form = {.n = n, .m = m, .four = four, .logs = logs, .gap = gap, .slope = slope, .scale = scale,
                       .places = a[1], .own = a[2], .width = a[3], .phi = a[4], .weight = a[5], .f = a[6], .wf = a[7],
                       .g = a[8], .wg = a[9], .e = a[10], .log_mass = a[11], .mass = a[12], .sums = a[13],
                       .to_f = a[14], .to_g = a[15]};
    const hinge_form *p = &form;
    const real *X = a[0];
    real *into = a[16];
    double *columns = (double *)a[17] + 9 * m, *works = columns + 6 * threads * m;
    long number = 0;
    prepare(&form, a[17]);
    for (long k = 0; k < 6 * threads * m; k++) columns[k] = k / m % 3 == 2 ? NOTHING.e : 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(+ : number)
    for (long i = 0; i < n; i++) {
        const long me = omp_get_thread_num();
        double *to_f = p->to_f ? columns + 3 * me * m : NULL, *to_g = p->to_g ? columns + 3 * (threads + me) * m : NULL;
        double *work = (double *)(((uintptr_t)(works + me * (26 * m + 512)) + 63) & ~(uintptr_t)63);
        const double steep = (1 + slope) * p->width[i], A = p->log_mass ? 0 : p->phi[i] + p->mid_f + p->mid_g;
        const int fits = 2 * (steep + gap) + p->range <= 600 && (sizeof(real) == 8 || steep <= 160) &&
                         (fabs(A) <= 300 || A == -INFINITY);
        const real *x = X + i * m;
        real *g = into ? into + i * m : NULL;
        if (fits && (slope > 0 ? four ? NAME(narrow_row)(1, 1, p, i, x, to_f, to_g, g, work)
                                      : NAME(narrow_row)(1, 0, p, i, x, to_f, to_g, g, work)
                               : four ? NAME(narrow_row)(0, 1, p, i, x, to_f, to_g, g, work)
                                      : NAME(narrow_row)(0, 0, p, i, x, to_f, to_g, g, work))) continue;
        for (long j = 0; j < m; j++) work[j] = x[j];
        wide_row(p, i, work, to_f, to_g, into != NULL, (wide *)(work + m));
        for (long j = 0; g && j < m; j++) g[j] += (real)(scale * work[j]);
        number++;
    }
    finish(p, p->mid_f, p->e ? p->E_ : p->F_, columns, threads, p->to_f);
    finish(p, p->mid_g, p->G_, columns + 3 * threads * m, threads, p->to_g);
    return number;
}

/* Σ_jk plus_j minus_k (max(0, γ − t) − δt) of each row, and its derivative by s = x/scale:
 * of a positive −(Σ_{t ≤ γ} minus_k + δ Σ minus_k), of a negative the same of positives with the other sign. */
FAST long NAME(hinge_costs)(long n, long m, long four, double gap, double slope, double scale, const real *X,
                            const void *places, const int64_t *own, const double *plus, const double *minus,
                            double *costs, real *gradient, double *work, long threads) {
    const long quarter = quarter_of(m);
    const hinge_form form = {.n = n, .m = m, .four = four, .places = places};
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        const void *place = places_of(&form, 0, i), *low = places_of(&form, 1, i), *high = places_of(&form, 2, i);
        const double *near = plus + i * m, *far = minus + i * m;
        double *running = work + omp_get_thread_num() * (8 * quarter + 8), total = 0, all_near = 0, all_far = 0;
        memset(running, 0, 8 * quarter * sizeof(double));
        for (long j = 0; j < m; j++) {
            if (j == own[i]) continue;
            *(pair *)(running + 2 * at(place, j, four)) = (pair){near[j], far[j]};
            all_near += near[j], all_far += far[j];
        }
        running_sums(0, 0, quarter, (pairs *)running);
        for (long j = 0; j < m; j++) {
            const double x = j == own[i] ? 0 : X[i * m + j], a = j == own[i] ? 0 : near[j], b = j == own[i] ? 0 : far[j];
            const double unmet = running[2 * at(low, j, four) + 1], unmeeting = running[2 * at(high, j, four)];
            total += a * ((gap - x) * unmet - slope * x * all_far) + b * x * (unmeeting + slope * all_near);
            gradient[i * m + j] = (real)(scale * (b * (unmeeting + slope * all_near) - a * (unmet + slope * all_far)));
        }
        costs[i] = total;
    }
    return 0;
}
