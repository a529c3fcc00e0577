/* Sums over the terms A_q(x_ij) B_q(x_ik) of the log-sigmoid kernel (§3, §10), x = s/τ, m = 1/ε.
 *
 *     B_q(x) = exp(−e^{x + v_q}),    A_q(x) = h/Γ(m) · e^{m(x + v_q)} · B_q(x),    v_q = h·q,   2^{1/splits} = e^h.
 *
 * A row has nodes of its own, `lists`, in ascending order, with gaps. B_{q + splits} = B_q² makes a *chain* of one
 * exponential and squarings, in registers. Arrays of nodes are N×width, double. */
#ifndef LEVELS
#define LEVELS 3 /* of a chain that are done at once; those beyond its end have no weight */
/* Squares end below the smallest normal number, which takes a hundred times as long: make that 0, and undo it. */
#ifdef __SSE__
#include <xmmintrin.h>
#define FLUSH const unsigned mode_before = _mm_getcsr(); _mm_setcsr(mode_before | 0x8040);
#define UNFLUSH _mm_setcsr(mode_before);
#else
#define FLUSH
#define UNFLUSH
#endif
/* The rule, as log_sigmoid.py writes it. */
enum { FACTOR, POWER, STEP, SPLITS, LEFT, RIGHT, CONSTANT, MOST, BLOCK, ALIVE, GROWTH,
       TAIL = LEFT, HEAD = RIGHT }; /* of the mean cost: logarithms of the rates where it ends */
#define WIDTH ((long)(64 / sizeof(real))) /* of this type */
#endif

/* The nodes of each row: those within the bell of a pair (j, k), j ≠ k, around −max(x_j, x_k). Also the smallest
 * entry `low`, for which alone the sum over these nodes of A_q B_q is not 2^{−m}: its logarithm and the slope of
 * that; and the largest x. A count of −1 stands for numbers that are none. `marks`: `room` bytes a thread. */
FAST long NAME(term_nodes)(long n, long m, long width, long room, long threads, const double *rule, const real *S,
                      const int64_t *own, int64_t *counts, int32_t *lists, int64_t *lows, double *tops, double *met,
                      double *slopes, char *marks) {
    const double step = rule[STEP], ln2 = log(2);
    const long before = (long)floor((rule[LEFT] - ln2) / step), after = (long)ceil(rule[RIGHT] / step) + 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        const real *s = S + i * m;
        double top = -INFINITY, x1 = INFINITY, x2 = INFINITY, all = 0;
        long low = -1;
        for (long j = 0; j < m; j++) {
            const double x = rule[FACTOR] * s[j];
            if (j == own[i]) continue;
            all += x, top = x > top ? x : top;
            if (x < x1) x2 = x1, x1 = x, low = j;
            else if (x < x2) x2 = x;
        }
        counts[i] = -1, lows[i] = low < 0 ? 0 : low, tops[i] = top, met[i] = slopes[i] = 0;
        if (!(fabs(all) < INFINITY) || !((top - x2) / step < (double)room - 2)) continue;
        char *mark = marks + omp_get_thread_num() * room;
        const long base = (long)floor(-top / step), length = (long)floor(-x2 / step) - base + 1;
        const long last = (long)ceil((rule[RIGHT] - log_add(x1, x2)) / step);
        memset(mark, 0, length);
        for (long j = 0; j < m; j++)
            if (j != own[i] && j != low) mark[(long)floor(-rule[FACTOR] * s[j] / step) - base] = 1;
        long count = 0, next = base + before;
        double high = -INFINITY, sum = 0, slope = 0;
        for (long place = 0; place < length; place++) {
            if (!mark[place]) continue;
            const long end = base + place + after < last ? base + place + after : last;
            for (next = base + place + before > next ? base + place + before : next; next <= end; next++, count++) {
                if (!lists) continue;
                lists[i * width + count] = (int32_t)next;
                const double t = x1 + step * next, rate = exp(t < 700 ? t : 700);
                const double part = rule[CONSTANT] + rule[POWER] * t - 2 * rate;
                if (part > high) sum *= exp(high - part), slope *= exp(high - part), high = part;
                sum += exp(part - high), slope += exp(part - high) * (rule[POWER] - 2 * rate);
            }
        }
        counts[i] = count;
        if (lists) met[i] = high + log(sum), slopes[i] = slope / sum;
    }
    return 0;
}

/* --- The fast passes. A block is some nodes in a row from v on; of A_q(x_j) e^{f_j} it has the weights
 * G_j = e^{m x_j + f_j − peak}, the factors e^{mh(q − first)} of its nodes and B. Entries whose rate is beyond the
 * bell from the first node on have no weight, so that an underflow loses less than rule[LOST] (§10). */
typedef real NAME(lanes) __attribute__((vector_size(64), aligned(sizeof(real)), may_alias));

/* x less the largest one, 1 + what that is off by rounding, and its exponential; nowhere at own and beyond the
 * end. Returns the smallest. */
INLINE real NAME(enter)(long m, long size, long own, double factor, double top, const real *s, real *x) {
    real low = 0, *off = x + size, *u = off + size;
#pragma omp simd
    for (long j = 0; j < m; j++) {
        const double y = factor * s[j] - top, less = y < 0 ? y : 0;
        const real rounded = (real)less;
        x[j] = rounded, off[j] = (real)(1 + (less - rounded));
        u[j] = NAME(exponential)(rounded) * off[j];
    }
#pragma omp simd reduction(min : low)
    for (long j = 0; j < m; j++) low = x[j] < low ? x[j] : low;
    for (long j = own < 0 ? m : own; j < size; j = j < m ? m : j + 1) x[j] = u[j] = (real)1e30, off[j] = 1;
    return low;
}

/* Rates e^{x + height} and B at the first node of a chain. */
INLINE void NAME(begin)(long size, double height, int deep, const real *x, real *rate, real *beta) {
    const real shift = (real)height, scale = (real)(deep ? 1 + (height - shift) : exp(height)), most = 7;
    const real *off = x + size, *u = off + size;
    if (deep) /* u underflows where it matters */
#pragma omp simd
        for (long j = 0; j < size; j++) {
            const real r = NAME(exponential)(x[j] + shift < most ? x[j] + shift : most) * off[j] * scale;
            rate[j] = r, beta[j] = NAME(exponential)(-r);
        }
    else
#pragma omp simd
        for (long j = 0; j < size; j++) {
            const real r = u[j] * scale < 1000 ? u[j] * scale : 1000;
            rate[j] = r, beta[j] = NAME(exponential)(-r);
        }
}

/* sums_l = Σ_j weights_j B_l(x_j), l a level of a chain; `next`: B of the level after them. */
INLINE void NAME(chain_rows)(long size, const real *beta, real *next, const real *weights,
                             double *sums) {
    NAME(lanes) total[LEVELS];
    for (int l = 0; l < LEVELS; l++) total[l] = (NAME(lanes)){0};
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), w = *(const NAME(lanes) *)(weights + j);
        for (int l = 0; l < LEVELS; l++) total[l] += w * b, b *= b;
        *(NAME(lanes) *)(next + j) = b;
    }
    for (int l = 0; l < LEVELS; l++) {
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int k = 0; k < half; k++) total[l][k] += total[l][k + half];
        sums[l] = total[l][0];
    }
}

/* out_j += Σ_l weights_l B_l(x_j). */
INLINE void NAME(chain_columns)(long size, const real *beta, real *next, const real *weights,
                                real *out) {
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), sum = *(NAME(lanes) *)(out + j);
        for (int l = 0; l < LEVELS; l++) sum += weights[l] * b, b *= b;
        *(NAME(lanes) *)(out + j) = sum, *(NAME(lanes) *)(next + j) = b;
    }
}

/* out_zj += Σ_l (offset_z − rate_l) B_l(x_j) Σ_t left_ztl right_ztj: slopes of A (without G), z = 0 and offset m, and of
 * B; beta and rates become those of the level after. `right`: rank rows for every WIDTH columns. */
INLINE void NAME(chain_slopes)(long size, const long *rank, real power, real *beta, real *rates,
                               real *const *left, const real *const *right, real *const *out) {
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b, rate, total[LEVELS];
        for (int z = 0; z < 2; z++) {
            NAME(lanes) sum = *(NAME(lanes) *)(out[z] + j);
            for (int l = 0; l < LEVELS; l++) total[l] = (NAME(lanes)){0};
            for (long t = 0; t < rank[z]; t++) {
                const NAME(lanes) r = *(const NAME(lanes) *)(right[z] + j * rank[z] + t * WIDTH);
                for (int l = 0; l < LEVELS; l++) total[l] += left[z][t * LEVELS + l] * r;
            }
            b = *(NAME(lanes) *)(beta + j), rate = *(NAME(lanes) *)(rates + j);
            for (int l = 0; l < LEVELS; l++, b *= b, rate += rate) sum += ((z ? 0 : power) - rate) * b * total[l];
            *(NAME(lanes) *)(out[z] + j) = sum;
        }
        *(NAME(lanes) *)(beta + j) = b, *(NAME(lanes) *)(rates + j) = rate;
    }
}

/* Where the block that begins at a place of a list ends: as few blocks as may be, of about the same size. */
static long NAME(block_end)(const int32_t *list, long first, long count, long most) {
    long run = 1;
    while (first + run < count && list[first + run] == list[first] + run) run++;
    return first + (run + (run + most - 1) / most - 1) / ((run + most - 1) / most);
}

/* The weights of a block's entries: G times `columns` (or 1) for A, `columns` for B, in units whose logarithm is
 * returned, and which `unit` multiplies. A row's G stays in `g` from block to block, with `peak`, the logarithm of its
 * units, until some entries have no weight: what is left might then underflow. */
FAST static double NAME(weigh)(long m, long size, long own, int attract, int new, double c, real limit, const real *s,
                               const real *x, const double *f, const double *columns, real *g, double *peak,
                               real *out, double *unit) {
    const int some = limit < 0, renewed = attract && (new || some);
    double most = 0, high = -1e300;
    for (int side = 0; side < 2; side++) { /* of own, whose sums may have no room */
        const long begin = side ? own + 1 : 0, end = side ? m : own < 0 ? 0 : own;
        if (some)
            for (long j = begin; j < end; j++) {
                if (!(x[j] <= limit)) continue;
                if (columns && fabs(columns[j]) > most) most = fabs(columns[j]);
                if (attract && c * s[j] + f[j] > high) high = c * s[j] + f[j];
            }
        if (columns && !some)
#pragma omp simd reduction(max : most)
            for (long j = begin; j < end; j++) most = fabs(columns[j]) > most ? fabs(columns[j]) : most;
        if (renewed && !some)
#pragma omp simd reduction(max : high)
            for (long j = begin; j < end; j++) high = c * s[j] + f[j] > high ? c * s[j] + f[j] : high;
    }
    if (renewed) {
        *peak = high;
#pragma omp simd
        for (long j = 0; j < m; j++) {
            const real log = (real)(c * s[j] + f[j] - high);
            g[j] = NAME(exponential)(log < 0 ? log : 0);
        }
    }
    const double inverse = most > 1e-300 ? 1 / most : 0;
    *unit = columns ? most : 1;
#pragma omp simd
    for (long j = 0; j < m; j++) {
        const real one = columns ? (real)(columns[j] * inverse) : 1;
        out[j] = x[j] <= limit ? (attract ? g[j] * one : one) : 0;
    }
    for (long j = m; j < size; j++) out[j] = 0;
    return attract ? *peak : 0;
}

/* A pass over some rows (§10): sums_iq = Σ_j K_q values_j, K_q = A_q(x_ij) e^{φ_i + f_j} (`attract`) or B_q(x_ij);
 * and with the other kernel, unless `received` is NULL, received_j += Σ_iq weights_iq K_q. dots_i = Σ_q partner_iq
 * sums_iq. The weights are the sums, with `given` at φ_i + log given_i / (dots_i − base_i), which φ becomes; or, in
 * place of the sums, sums_iq + extra_iq, with `given` sums_iq − (base_i + dots_i) given_i extra_iq.
 * A thread's work: 7 + width rows of `size`, m rounded up to WIDTH. */
FAST long NAME(term_pass)(long n, long m, long width, long attract, long threads, const double *rule, const real *S,
                          const int64_t *own, const int64_t *counts, const int32_t *lists, const double *tops,
                          double *phi, const double *f, const double *values, double *sums, double *received,
                          const double *partner, double *dots, const double *base, const double *given,
                          const double *extra, real *work) {
    const long size = (m + WIDTH - 1) / WIDTH * WIDTH, splits = (long)rule[SPLITS], most = (long)rule[BLOCK];
    const double c = rule[POWER] * rule[FACTOR], step = rule[STEP], *growth = rule + GROWTH;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8)
    for (long i = 0; i < n; i++) {
        real *x = work + omp_get_thread_num() * (7 + width) * size, *next = x + 3 * size, *weighted = next + size;
        real *sum = weighted + size, *g = sum + size, *beta = g + size, units[LEVELS]; /* beta: of each chain */
        double *mine = sums + i * width, *out = received + omp_get_thread_num() * m, peak_g, unit = 1, dot = 0;
        FLUSH
        const int32_t *list = lists + i * width;
        const real *s = S + i * m;
        const int deep = NAME(enter)(m, size, own[i], rule[FACTOR], tops[i], s, x) < EXP_LOW + 20;
        for (long first = 0, end; first < counts[i]; first = end) {
            end = NAME(block_end)(list, first, counts[i], most);
            const double v = step * list[first];
            const double peak = NAME(weigh)(m, size, own[i], attract, !first, c, (real)(rule[ALIVE] - v - tops[i]), s, x, f,
                                            values, g, &peak_g, weighted, &unit);
            const double scale = unit * (attract ? exp(phi[i] + peak + rule[CONSTANT] + rule[POWER] * v) : 1);
            for (long chain = first; chain < first + splits && chain < end; chain++, beta += size) {
                NAME(begin)(size, v + step * (chain - first) + tops[i], deep, x, next, beta);
                const real *b = beta;
                for (long k = chain; k < end; k += splits * LEVELS, b = next) {
                    double found[LEVELS];
                    NAME(chain_rows)(size, b, next, weighted, found);
                    for (long l = 0, q = k; l < LEVELS && q < end; l++, q += splits)
                        mine[q] = found[l] * scale * (attract ? growth[q - first] : 1);
                }
            }
        }
        for (long q = 0; partner && q < counts[i]; q++) dot += partner[i * width + q] * mine[q];
        if (partner) dots[i] = dot;
        if (given && !extra) phi[i] = given[i] > 0 ? phi[i] + log(given[i] / (dot - base[i])) : -INFINITY;
        const double share = given && extra ? -(base[i] + dot) * given[i] : 1;
        for (long q = 0; extra && q < counts[i]; q++) mine[q] += share * extra[i * width + q];
        beta = g + size;
        for (long first = 0, end, new = 1; received && first < counts[i]; first = end) {
            end = NAME(block_end)(list, first, counts[i], most);
            const double v = step * list[first];
            double top = 0, peak = 0;
            for (long q = first; q < end; q++) top = fmax(top, fabs(mine[q]) * (attract ? 1 : growth[q - first]));
            memset(sum, 0, size * sizeof(real));
            for (long chain = first; chain < first + splits && chain < end; chain++, beta += size) {
                const real *b = beta;
                for (long k = chain; top > 0 && k < end; k += splits * LEVELS, b = next) {
                    for (long l = 0, q = k; l < LEVELS; l++, q += splits) /* `top` may be tiny */
                        units[l] = q < end ? (real)(mine[q] * (attract ? 1 : growth[q - first]) / top) : 0;
                    NAME(chain_columns)(size, b, next, units, sum);
                }
            }
            if (top == 0) continue;
            if (!attract)
                peak = NAME(weigh)(m, size, own[i], 1, new, c, (real)(rule[ALIVE] - v - tops[i]), s, x, f, NULL, g, &peak_g,
                                   weighted, &unit);
            new = 0;
            const double scale = top * (attract ? 1 : exp(phi[i] + peak + rule[CONSTANT] + rule[POWER] * v));
#pragma omp simd
            for (long j = 0; j < m; j++) out[j] += scale * (double)(attract ? sum[j] : sum[j] * weighted[j]);
        }
        UNFLUSH
    }
    return 0;
}

/* Rows of the gradient with respect to s, added to G: Σ_q slope_q Σ_t left_tq right_tj over both kernels (§4), where
 * the slope of A is (m − e^{x+v}) A e^{φ + f} and that of B −e^{x+v} B (§3). left: N×rank×width; right as for
 * chain_slopes. A thread's work: m doubles; 9 rows and LEVELS·(both ranks). */
FAST long NAME(term_slopes)(long n, long m, long width, long rank_a, long rank_b, long threads, const double *rule,
                            const real *S, const int64_t *own, const int64_t *counts, const int32_t *lists,
                            const double *tops, const double *phi, const double *f, const double *left_a,
                            const double *left_b, const real *right_a, const real *right_b, real *G, double *wide,
                            real *work) {
    const long size = (m + WIDTH - 1) / WIDTH * WIDTH, splits = (long)rule[SPLITS], rank[2] = {rank_a, rank_b};
    const double c = rule[POWER] * rule[FACTOR], step = rule[STEP], *growth = rule + GROWTH;
    const double *const left[2] = {left_a, left_b};
    const real *const right[2] = {right_a, right_b};
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8)
    for (long i = 0; i < n; i++) {
        real *x = work + omp_get_thread_num() * (9 * size + LEVELS * (rank_a + rank_b));
        real *beta = x + 3 * size, *rate = beta + size, *g = rate + size, *const out[2] = {g + size, g + 2 * size};
        real *const few[2] = {g + 4 * size, g + 4 * size + LEVELS * rank_a};
        double *sum = wide + omp_get_thread_num() * m, peak_g; /* parts of blocks cancel */
        memset(sum, 0, m * sizeof(double));
        FLUSH
        const int32_t *list = lists + i * width;
        const real *s = S + i * m;
        const int deep = NAME(enter)(m, size, own[i], rule[FACTOR], tops[i], s, x) < EXP_LOW + 20;
        for (long first = 0, end; first < counts[i]; first = end) {
            end = NAME(block_end)(list, first, counts[i], (long)rule[BLOCK]);
            const double v = step * list[first];
            double top[2] = {0, 0}, unit;
            for (int z = 0; z < 2; z++)
                for (long t = 0; t < rank[z]; t++)
                    for (long q = first; q < end; q++)
                        top[z] = fmax(top[z], fabs(left[z][(i * rank[z] + t) * width + q]) * (z ? 1 : growth[q - first]));
            memset(out[0], 0, 2 * size * sizeof(real));
            for (long chain = 0; chain < splits && first + chain < end; chain++) {
                NAME(begin)(size, v + step * chain + tops[i], deep, x, rate, beta);
                for (long k = first + chain; k < end; k += splits * LEVELS) {
                    for (int z = 0; z < 2; z++)
                        for (long t = 0; t < rank[z]; t++)
                            for (long l = 0, q = k; l < LEVELS; l++, q += splits)
                                few[z][t * LEVELS + l] =
                                    q < end && top[z] > 0 ? (real)(left[z][(i * rank[z] + t) * width + q] *
                                                                   (z ? 1 : growth[q - first]) / top[z]) : 0;
                    NAME(chain_slopes)(size, rank, (real)rule[POWER], beta, rate, few, right, out);
                }
            }
            const real limit = (real)(rule[ALIVE] - v - tops[i]);
            const double peak = NAME(weigh)(m, size, own[i], 1, !first, c, limit, s, x, f, NULL, g + 3 * size,
                                            &peak_g, g, &unit);
            const double a = top[0] * exp(phi[i] + peak + rule[CONSTANT] + rule[POWER] * v) * rule[FACTOR];
            const double b = top[1] * rule[FACTOR];
#pragma omp simd
            for (long j = 0; j < m; j++) sum[j] += a * (out[0][j] * g[j]) + b * out[1][j];
        }
        for (long j = 0; j < m; j++) G[i * m + j] += (real)sum[j];
        UNFLUSH
    }
    return 0;
}

/* `push` of primitive.h with nodes (§4): for each row and node the softmax p of positives and q of negatives,
 * P¹² = e^{φ + log r⁻} A e^f (1 − q), P¹³ = e^{φ + log r⁺} B e^g (1 − p), and the means of w² and of w¹ over all but j:
 *     out⁰ = Σ P¹² w¹ + P¹³ w²,   out¹ = Σ P¹² (w⁰ + mean of w²),   out² = Σ P¹³ (w⁰ + mean of w¹).
 * G, if given, receives the gradient with respect to s; slopes are m − e^{x+v} of A and −e^{x+v} of B.
 * A thread's work: 3m doubles, 7m reals. */
FAST long NAME(term_push)(long n, long m, long width, long threads, const double *rule, const real *S,
                          const int64_t *own, const int64_t *counts, const int32_t *lists, const double *phi,
                          const double *f, const double *g, const double *w0, const double *w1, const double *w2,
                          double *out0, double *out1, double *out2, real *G, double *wide, real *work) {
    const double factor = rule[FACTOR], most = rule[MOST];
    double all = 0; /* NaN if a potential is */
    for (long j = 0; j < m; j++) all += f[j] == f[j] && g[j] == g[j] ? 0 : NAN;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num();
        double *near = wide + me * 3 * m, *far = near + m, *force = far + m, *sum1 = out1 + me * m, *sum2 = out2 + me * m;
        real *P = work + me * 7 * m, *Q = P + m, *v1 = Q + m, *v2 = v1 + m, *o1 = v2 + m, *o2 = o1 + m, *rate = o2 + m;
        for (long j = 0; j < m; j++) v1[j] = w1 ? (real)w1[j] : 0, v2[j] = w2 ? (real)w2[j] : 0;
#pragma omp for schedule(static)
        for (long i = 0; i < n; i++) {
            const real *s = S + i * m, w = w0 ? (real)w0[i] : 0, power = (real)rule[POWER];
            double sum = counts[i] < 0 ? NAN : all;
            for (long j = 0; j < m; j++) force[j] = sum, o1[j] = o2[j] = (real)sum;
            for (long node = 0; sum == sum && node < counts[i]; node++) {
                const double v = rule[STEP] * lists[i * width + node], constant = rule[CONSTANT];
#pragma omp simd
                for (long j = 0; j < m; j++) {
                    const double x = factor * s[j] + v;
                    rate[j] = NAME(exponential)((real)(x < most ? x : most));
                    near[j] = f[j] + constant + power * x - rate[j], far[j] = g[j] - rate[j];
                }
                const NAME(soft_row) p = NAME(soft)(m, own[i], 0, s, near, P), q = NAME(soft)(m, own[i], 0, s, far, Q);
                if (p.at < 0 || q.at < 0 || phi[i] + p.total + q.total < -745) continue;
                /* Means over all but the largest terms, which P and Q leave out. */
                const double rest1 = NAME(dot)(m, P, v1), rest2 = NAME(dot)(m, Q, v2);
                const real share_p = (real)exp(p.log_rest), share_q = (real)exp(q.log_rest);
                const real mean1 = (real)(share_p * rest1 + exp(p.log_top) * v1[p.at]);
                const real mean2 = (real)(share_q * rest2 + exp(q.log_top) * v2[q.at]);
                near[q.at] += q.log_rest, far[p.at] += p.log_rest; /* there all but j is the rest itself */
                if (own[i] >= 0) near[own[i]] = far[own[i]] = -INFINITY;
                real few = 0;
#pragma omp simd reduction(+ : few)
                for (long j = 0; j < m; j++) {
                    const real but_p = 1 - share_p * P[j], but_q = 1 - share_q * Q[j];
                    const real P12 = NAME(exponential)((real)(phi[i] + q.total + near[j])) * but_q;
                    const real P13 = NAME(exponential)((real)(phi[i] + p.total + far[j])) * but_p;
                    const real w12 = j == q.at ? (real)rest2 : (mean2 - share_q * Q[j] * v2[j]) / but_q;
                    const real w13 = j == p.at ? (real)rest1 : (mean1 - share_p * P[j] * v1[j]) / but_p;
                    few += P12 * v1[j] + P13 * v2[j];
                    o1[j] += P12 * (w + w12), o2[j] += P13 * (w + w13);
                    force[j] += P12 * (w + v1[j] + w12) * (power - rate[j]) - P13 * (w + v2[j] + w13) * rate[j];
                }
                sum += few;
            }
            out0[i] = sum;
            for (long j = 0; j < m; j++) sum1[j] += o1[j], sum2[j] += o2[j];
            if (G)
                for (long j = 0; j < m; j++) G[i * m + j] += (real)(force[j] * factor);
        }
    }
    return 0;
}

/* Of each row Σ_jk plus_j minus_k log(1 + e^{x_k − x_j}) and its gradient with respect to s, by Frullani's integral
 * (§3): h Σ_q near_q far_q, near_q = Σ_j plus_j B_q(x_j), far_q = Σ_k minus_k (1 − B_q(x_k)), from the node on where
 * the largest rate is e^TAIL; below it the rates are summed to the end. In double alone.
 * A thread's work: 10 rows. */
#if MANTISSA == 52
#define pair_costs_float pair_costs_double
FAST long NAME(pair_costs)(long n, long m, long threads, const double *rule, const real *S, const real *plus,
                           const real *minus, double *totals, real *gradient, real *work) {
    const long size = (m + WIDTH - 1) / WIDTH * WIDTH, splits = (long)rule[SPLITS], rank[2] = {1, 1};
    const double h = rule[STEP];
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8)
    for (long i = 0; i < n; i++) {
        real *x = work + omp_get_thread_num() * 10 * size, *u = x + 2 * size, *beta = u + size, *rate = beta + size;
        real *next = rate + size, *const out[2] = {next + size, next + 2 * size}, *positive = next + 3 * size;
        real *negative = positive + size, *slope = gradient + i * m;
        const real *s = S + i * m, *const right[2] = {positive, negative};
        double top = -INFINITY, low = INFINITY, n_plus = 0, n_minus = 0, all = 0;
        memset(out[0], 0, 4 * size * sizeof(real));
        for (long j = 0; j < m; j++) {
            const double p = positive[j] = plus[i * m + j], q = negative[j] = minus[i * m + j], y = rule[FACTOR] * s[j];
            n_plus += p, n_minus += q;
            if (p + q > 0) top = y > top ? y : top, all += y;
            if (p > 0) low = y < low ? y : low;
        }
        totals[i] = n_plus == 0 || n_minus == 0 ? 0 : NAN;
        for (long j = 0; j < m; j++) slope[j] = (real)totals[i];
        if (totals[i] == 0 || !(fabs(all) < INFINITY)) continue; /* no numbers: never a number of nodes */
        FLUSH
        const int deep = NAME(enter)(m, size, -1, rule[FACTOR], top, s, x) < EXP_LOW + 20;
        const long start = (long)floor((rule[TAIL] - top) / h), end = (long)ceil((rule[HEAD] - low) / h) + 1;
        const double first = n_plus * h * exp(h * start + top) / expm1(h); /* Σ_{q < start} of the largest rate */
        double total = 0;
        for (long begin = start; begin < end; begin += splits * 4 * LEVELS) {
            const long stop = begin + splits * 4 * LEVELS < end ? begin + splits * 4 * LEVELS : end;
            for (long chain = begin; chain < begin + splits && chain < stop; chain++) {
                NAME(begin)(size, h * chain + top, deep, x, rate, beta);
                for (long k = chain; k < stop; k += splits * LEVELS) {
                    double near[LEVELS], far[LEVELS];
                    real left[2][LEVELS], *const few[2] = {left[0], left[1]};
                    NAME(chain_rows)(size, beta, next, positive, near);
                    NAME(chain_rows)(size, beta, next, negative, far);
                    for (long l = 0; l < LEVELS; l++) {
                        if (k + l * splits >= stop) near[l] = 0, far[l] = n_minus; /* beyond: no weight */
                        far[l] = n_minus - far[l], total += h * near[l] * far[l];
                        left[0][l] = (real)(h * far[l]), left[1][l] = (real)(-h * near[l]);
                    }
                    NAME(chain_slopes)(size, rank, 0, beta, rate, few, right, out);
                }
            }
        }
        for (long j = 0; j < m; j++) {
            const double beyond = negative[j] * u[j] * first;
            total += beyond, slope[j] = (real)(rule[FACTOR] * (out[0][j] + out[1][j] + beyond));
        }
        totals[i] = total;
        UNFLUSH
    }
    return 0;
}
#endif
