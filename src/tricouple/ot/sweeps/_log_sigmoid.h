/* Sums over the log-sigmoid kernel's terms (§10), for one floating-point type.
 *
 * Included by _native.c like _sweeps.h; log_sigmoid.py says why, log_sigmoid_kernels.py allocates all
 * arrays. Node q is at v_q = h·q, and 2^{1/splits} = e^h. With x = s/τ the factors of an entry are
 *
 *     B_q(x) = exp(−e^{x + v_q}),    A_q(x) = h/Γ(m) · e^{m(x + v_q)} · B_q(x),
 *
 * and B_{q + splits} = B_q². A row has nodes of its own, from `starts` on, in blocks of equal size: a
 * *chain* is every so-manieth node of a block, one exponential and then squarings. In a block
 * A_q = f_q · G · B_q, G = exp(ceiling + m(x + v_first − right)): f_q holds what is common to all entries,
 * and G stays within the range of the type wherever A matters.
 *
 * Arrays of terms are Q×N, `stride` = N, the rows of a call beginning at their address.
 */

#ifndef LEVELS /* what both types share */
#define LEVELS 12
#define WIDTH ((long)(32 / sizeof(real)))
#define TWICE (2 * WIDTH)
#define RATE 1000 /* where every B is 0 */

/* The rule, as log_sigmoid_kernels.py writes it; from SCALES on the f of a block's nodes. The mean cost
 * has a rule of its own, the logarithms of the rates where it ends in place of what it does not need. */
enum { FACTOR, POWER, STEP, SPLITS, BLOCK, CEILING, RIGHT, SCALES };
enum { TAIL = CEILING, HEAD = RIGHT };

/* A call with a constant number of levels, so that the loops above are unrolled. */
#ifdef __SANITIZE_ADDRESS__
#define BY_LEVELS(levels, function, ...) NAME(function)(levels, __VA_ARGS__);
#else
#define BY_LEVELS(levels, function, ...)                                                             \
    switch (levels) {                                                                                \
        case 1: NAME(function)(1, __VA_ARGS__); break;                                               \
        case 2: NAME(function)(2, __VA_ARGS__); break;                                               \
        case 3: NAME(function)(3, __VA_ARGS__); break;                                               \
        case 4: NAME(function)(4, __VA_ARGS__); break;                                               \
        case 5: NAME(function)(5, __VA_ARGS__); break;                                               \
        case 6: NAME(function)(6, __VA_ARGS__); break;                                               \
        case 7: NAME(function)(7, __VA_ARGS__); break;                                               \
        case 8: NAME(function)(8, __VA_ARGS__); break;                                               \
        case 9: NAME(function)(9, __VA_ARGS__); break;                                               \
        case 10: NAME(function)(10, __VA_ARGS__); break;                                             \
        case 11: NAME(function)(11, __VA_ARGS__); break;                                             \
        case 12: NAME(function)(12, __VA_ARGS__); break;                                             \
    }
#endif
#endif

typedef real NAME(lanes) __attribute__((vector_size(32), aligned(sizeof(real)), may_alias));

/* One row: its nodes, and buffers of `size` numbers each, a multiple of TWICE. */
typedef struct {
    const double *rule;
    long size, m, diagonal, start, count;
    int deep;                            /* whether e^{x − top} nearly underflows somewhere */
    double top, low, base;               /* the largest x, the least x − top, log G at x = top */
    real *x, *u, *g, *rate, *beta, *sum; /* x − top, its exponential, G, rates, B, a sum over terms */
} NAME(row);

static void NAME(take_room)(NAME(row) *row, const double *rule, long m, real *work) {
    row->rule = rule, row->m = m;
    row->size = (m + TWICE - 1) / TWICE * TWICE;
    real **parts[] = {&row->x, &row->u, &row->g, &row->rate, &row->beta, &row->sum};
    for (int k = 0; k < 6; k++) *parts[k] = work + k * row->size;
}

/* x and e^x of a row; the diagonal is negative where there is none. */
static inline void NAME(enter)(NAME(row) *row, long m, long diagonal, const real *s, real top,
                               long start, long count) {
    const real factor = (real)row->rule[FACTOR];
    row->top = (double)top * row->rule[FACTOR], row->start = start, row->count = count;
    real low = 0;
#pragma omp simd reduction(min : low)
    for (long j = 0; j < m; j++) {
        row->x[j] = (s[j] < top ? s[j] - top : 0) * factor;
        row->u[j] = NAME(exponential)(row->x[j]);
        low = row->x[j] < low ? row->x[j] : low;
    }
    row->low = low, row->base = -INFINITY, row->deep = low < (real)(EXP_LOW + 20);
    for (long j = m; j < row->size; j++) row->x[j] = row->u[j] = 0;
    row->diagonal = diagonal;
}

/* No B on the diagonal and beyond the end. */
static inline void NAME(exclude)(const NAME(row) *row) {
    for (long j = row->m; j < row->size; j++) row->beta[j] = 0;
    if (row->diagonal >= 0) row->beta[row->diagonal] = 0;
}

/* B at a node, and its rates e^{x + v}. */
static inline void NAME(begin_chain)(const NAME(row) *row, long node) {
    const double height = row->rule[STEP] * node + row->top;
    const real scale = (real)exponential_double(height), shift = (real)height, most = (real)log(RATE);
    if (row->deep) {
#pragma omp simd
        for (long j = 0; j < row->size; j++) {
            const real log = row->x[j] + shift;
            row->rate[j] = NAME(exponential)(log < most ? log : most);
            row->beta[j] = NAME(exponential)(-row->rate[j]);
        }
        NAME(exclude)(row);
        return;
    }
#pragma omp simd
    for (long j = 0; j < row->size; j++) {
        const real rate = row->u[j] * scale;
        row->rate[j] = rate < RATE ? rate : RATE;
        row->beta[j] = NAME(exponential)(-row->rate[j]);
    }
    NAME(exclude)(row);
}

/* G of the block that begins at a node. From one block of a row to the next it grows by one factor for all
 * entries, up to its ceiling, unless it was an underflow. */
static inline void NAME(begin_block)(NAME(row) *row, long node) {
    const double *rule = row->rule, lift = rule[STEP] * node + row->top - rule[RIGHT];
    const double base = rule[CEILING] + rule[POWER] * lift;
    const real m = (real)rule[POWER], ceiling = (real)rule[CEILING];
    if (row->base + rule[POWER] * row->low > EXP_LOW + 1 && base - row->base < -EXP_LOW - 20) {
        const real growth = (real)exponential_double(base - row->base),
                   most = (real)exponential_double(rule[CEILING]);
#pragma omp simd
        for (long j = 0; j < row->size; j++) {
            const real g = row->g[j] * growth;
            row->g[j] = g < most ? g : most;
        }
    } else {
        const real start = (real)base;
#pragma omp simd
        for (long j = 0; j < row->size; j++) {
            const real log = row->x[j] * m + start;
            row->g[j] = NAME(exponential)(log < ceiling ? log : ceiling);
        }
    }
    row->base = base;
}

/* The sum of all lanes, by halves. */
static inline __attribute__((always_inline)) double NAME(lane_sum)(NAME(lanes) lanes) {
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) lanes[k] += lanes[k + half];
    return lanes[0];
}

/* sums_l = Σ_j weights_j B_l(x_j), l a level of a chain. */
static inline __attribute__((always_inline)) void NAME(chain_rows)(const int levels, long size,
                                                                   const real *beta,
                                                                   const real *weights,
                                                                   double *sums) {
    NAME(lanes) total[LEVELS];
    for (int l = 0; l < levels; l++) total[l] = (NAME(lanes)){0};
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), w = *(const NAME(lanes) *)(weights + j);
        for (int l = 0; l < levels; l++) total[l] += w * b, b *= b;
    }
    for (int l = 0; l < levels; l++) sums[l] = NAME(lane_sum)(total[l]);
}

/* out_j += Σ_l weights_l B_l(x_j). */
static inline __attribute__((always_inline)) void NAME(chain_columns)(const int levels, long size,
                                                                      const real *beta,
                                                                      const real *weights,
                                                                      real *out) {
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), sum = *(NAME(lanes) *)(out + j);
        for (int l = 0; l < levels; l++) sum += weights[l] * b, b *= b;
        *(NAME(lanes) *)(out + j) = sum;
    }
}

/* Some levels of chain_slopes, which stay in registers. */
static inline __attribute__((always_inline)) void NAME(some_slopes)(
    const int some, long rank, real offset, const real *left, const real *right, NAME(lanes) *b,
    NAME(lanes) *rate, NAME(lanes) *sum) {
    NAME(lanes) total[4][2];
    for (int l = 0; l < some; l++) total[l][0] = total[l][1] = (NAME(lanes)){0};
    for (long t = 0; t < rank; t++) {
        const NAME(lanes) r0 = *(const NAME(lanes) *)(right + t * TWICE),
                          r1 = *(const NAME(lanes) *)(right + t * TWICE + WIDTH);
        for (int l = 0; l < some; l++)
            total[l][0] += left[t * LEVELS + l] * r0, total[l][1] += left[t * LEVELS + l] * r1;
    }
    for (int l = 0; l < some; l++)
        for (int k = 0; k < 2; k++)
            sum[k] += (offset + rate[k]) * b[k] * total[l][k], b[k] *= b[k], rate[k] += rate[k];
}

/* out_j += Σ_l (offset + sign · rate_l) B_l(x_j) Σ_t left_tl right_tj, where `left` has rows of LEVELS
 * and `right` for every TWICE columns rank rows. */
static inline __attribute__((always_inline)) void NAME(chain_slopes)(
    const int levels, long size, long rank, real offset, real sign, const real *beta,
    const real *rates, const real *left, const real *right, real *out) {
    for (long j = 0; j < size; j += TWICE, right += rank * TWICE) {
        NAME(lanes) b[2], rate[2], sum[2];
        for (int k = 0; k < 2; k++) {
            b[k] = *(const NAME(lanes) *)(beta + j + k * WIDTH);
            rate[k] = *(const NAME(lanes) *)(rates + j + k * WIDTH) * sign;
            sum[k] = *(NAME(lanes) *)(out + j + k * WIDTH);
        }
        if (levels >= 4) NAME(some_slopes)(4, rank, offset, left, right, b, rate, sum);
        if (levels >= 8) NAME(some_slopes)(4, rank, offset, left + 4, right, b, rate, sum);
        if (levels >= 12) NAME(some_slopes)(4, rank, offset, left + 8, right, b, rate, sum);
        NAME(some_slopes)(levels % 4, rank, offset, left + levels / 4 * 4, right, b, rate, sum);
        for (int k = 0; k < 2; k++) *(NAME(lanes) *)(out + j + k * WIDTH) = sum[k];
    }
}

/* Nodes of a row's blocks: as few blocks as may be, all of about the same size. */
static inline long NAME(block_size)(const NAME(row) *row) {
    const long most = (long)row->rule[BLOCK], blocks = (row->count + most - 1) / most;
    return blocks > 0 ? (row->count + blocks - 1) / blocks : 1;
}

/* The levels of a chain of a block with so many nodes. */
static inline long NAME(chain_levels)(long nodes, long chain, long splits) {
    return (nodes - chain + splits - 1) / splits;
}

static inline real NAME(largest_size)(const real *values, long size) {
    real top = 0;
#pragma omp simd reduction(max : top)
    for (long j = 0; j < size; j++) {
        const real value = values[j] < 0 ? -values[j] : values[j];
        top = value > top ? value : top;
    }
    return top;
}

/* Weights of a block's nodes, with f for A, in units of the largest, which is returned; `rank` of them
 * that are `apart`. out: for every chain `rank` rows of LEVELS. */
static double NAME(scale_block)(const double *rule, long attract, long nodes, long stride, long rank,
                                long apart, const real *weights, real *out) {
    const long splits = (long)rule[SPLITS];
    double top = 0;
    for (long node = 0; node < nodes; node++) {
        real most = 0;
        for (long t = 0; t < rank; t++) {
            const real size = (real)fabs(weights[t * apart + node * stride]);
            most = most > size ? most : size; /* a NaN stays, if it is the last */
        }
        const double size = most * (attract ? rule[SCALES + node] : 1.0);
        top = top > size ? top : size;
    }
    if (top == 0) return 0;
    for (long chain = 0; chain < splits && chain < nodes; chain++, out += rank * LEVELS) {
        real *place = out;
        for (long node = chain; node < nodes; node += splits, place++) {
            const double f = (attract ? rule[SCALES + node] : 1.0) / top;
            for (long t = 0; t < rank; t++)
                place[t * LEVELS] = (real)(f * weights[t * apart + node * stride]);
        }
    }
    return top;
}

/* Of one anchor, found sums and weights for the columns (Between in triplet_adjoint.py): α sums + β extra,
 * where α or β may come from Σ_q partner_q sums_q. Arrays have one number for each term, `stride` apart. */
static inline void NAME(between)(long count, long stride, const real *sums, real *scale,
                                 const real *partner, real *total, const real *given,
                                 const real *extra, real *weights) {
    double alpha = *scale, beta = 1;
    if (partner) {
        double sum = *total;
        for (long q = 0; q < count; q++) sum += (double)partner[q * stride] * sums[q * stride];
        if (extra)
            beta = sum *= *given;
        else
            alpha = *scale = (real)(*given / sum);
        *total = (real)sum;
    }
    for (long q = 0; q < count * stride; q += stride)
        weights[q] = (real)(alpha * sums[q] + (extra ? beta * extra[q] : 0));
}

/* A pass over some rows (§10): row sums Σ_j A_q(x_ij) columns_j or those of B, which `between` turns into
 * weights, with which column sums Σ_qi B_q(x_ij) weights_qi or those of A are added to `received`. Near and
 * far are 1 for A and 0 for B; a negative one leaves its half out, without a near one weights are given,
 * without a far one sums are all. `diagonal` is the column of the first row's own sample, negative across
 * two sets. An entry's exponentials serve both halves. work: 8 rows, splits·LEVELS, and a row for each
 * chain. */
FAST_LOOP static long NAME(term_pass)(long rows, long m, long diagonal, long stride, long terms,
                                      long near, long far, const double *rule, const real *s,
                                      const real *tops, const int64_t *starts, const int64_t *counts,
                                      const real *columns, real *sums, real *scale,
                                      const real *partner, real *total, const real *given,
                                      const real *extra, real *weights, double *received, real *work) {
    NAME(row) row;
    NAME(take_room)(&row, rule, m, work);
    const long splits = (long)rule[SPLITS];
    real *scaled = work + 6 * row.size, *weighted = work + 7 * row.size, *factors = work + 8 * row.size,
         *chains = factors + splits * LEVELS;
    const real top = near < 0 ? 0 : NAME(largest_size)(columns, m);
    memset(scaled, 0, row.size * sizeof(real));
    if (top > 0)
        for (long j = 0; j < m; j++) scaled[j] = columns[j] / top;
    for (long i = 0; i < rows; i++) {
        NAME(enter)(&row, m, diagonal < 0 ? -1 : diagonal + i, s + i * m, tops[i], starts[i],
                    counts[i]);
        const long block = NAME(block_size)(&row);
        row.beta = chains;
        for (long first = 0; first < row.count; first += block)
            for (long chain = 0; chain < splits && chain < row.count - first && chain < block; chain++) {
                NAME(begin_chain)(&row, row.start + first + chain);
                row.beta += row.size;
            }
        const real *beta = chains;
        for (long first = 0; near >= 0 && first < row.count; first += block) {
            const long nodes = row.count - first < block ? row.count - first : block;
            if (near > 0) {
                NAME(begin_block)(&row, row.start + first);
#pragma omp simd
                for (long j = 0; j < row.size; j++) weighted[j] = scaled[j] * row.g[j];
            }
            for (long chain = 0; chain < splits && chain < nodes; chain++, beta += row.size) {
                const long levels = NAME(chain_levels)(nodes, chain, splits);
                double found[LEVELS] = {0};
                BY_LEVELS(levels, chain_rows, row.size, beta, near > 0 ? weighted : scaled, found)
                for (long l = 0; l < levels; l++) {
                    const long node = chain + l * splits; /* of the block */
                    if (near > 0) found[l] *= rule[SCALES + node];
                    sums[(first + node) * stride + i] = (real)(found[l] * top);
                }
            }
        }
        if (near >= 0)
            for (long q = row.count; q < terms; q++) sums[q * stride + i] = 0;
        if (far < 0) continue;
        if (near >= 0)
            NAME(between)(row.count, stride, sums + i, scale + i, partner ? partner + i : 0, total + i,
                          given + i, extra ? extra + i : 0, weights + i);
        beta = chains;
        for (long first = 0; first < row.count; first += block) {
            const long nodes = row.count - first < block ? row.count - first : block;
            const double unit = NAME(scale_block)(rule, far, nodes, stride, 1, 0,
                                                  weights + first * stride + i, factors);
            memset(row.sum, 0, row.size * sizeof(real));
            for (long chain = 0; chain < splits && chain < nodes; chain++, beta += row.size)
                if (unit != 0) {
                    BY_LEVELS(NAME(chain_levels)(nodes, chain, splits), chain_columns, row.size, beta,
                              factors + chain * LEVELS, row.sum)
                }
            if (unit == 0) continue;
            if (far > 0) {
                NAME(begin_block)(&row, row.start + first);
#pragma omp simd
                for (long j = 0; j < m; j++) received[j] += unit * (double)(row.sum[j] * row.g[j]);
            } else {
#pragma omp simd
                for (long j = 0; j < m; j++) received[j] += unit * row.sum[j];
            }
        }
    }
    return 0;
}

/* Rows of the gradient with respect to x: Σ_q slope_q Σ_t left_tq right_tj over both kernels (§4), where the
 * slope of A is (m − e^{x + v}) A and that of B −e^{x + v} B (§3). Left factors are rows×rank×Q, Q = `terms`;
 * right ones as for chain_slopes. work: 7 rows, a row of doubles, and (ranks)·splits·LEVELS. */
FAST_LOOP static long NAME(term_slopes)(long rows, long m, long diagonal, long terms, long rank_a,
                                        long rank_b, const double *rule, const real *s,
                                        const real *tops, const int64_t *starts,
                                        const int64_t *counts, const real *left_a,
                                        const real *right_a, const real *left_b, const real *right_b,
                                        real *out, real *work) {
    NAME(row) row;
    NAME(take_room)(&row, rule, m, work);
    const long splits = (long)rule[SPLITS];
    double *total = (double *)(work + 6 * row.size);
    real *other = work + 8 * row.size, *factors_a = other + row.size,
         *factors_b = factors_a + rank_a * splits * LEVELS;
    for (long i = 0; i < rows; i++) {
        NAME(enter)(&row, m, diagonal < 0 ? -1 : diagonal + i, s + i * m, tops[i], starts[i],
                    counts[i]);
        const long block = NAME(block_size)(&row);
        memset(total, 0, m * sizeof(double));
        for (long first = 0; first < row.count; first += block) {
            const long nodes = row.count - first < block ? row.count - first : block;
            const real *own_a = left_a + i * rank_a * terms + first,
                       *own_b = left_b + i * rank_b * terms + first;
            const double unit_a = NAME(scale_block)(rule, 1, nodes, 1, rank_a, terms, own_a, factors_a),
                         unit_b = NAME(scale_block)(rule, 0, nodes, 1, rank_b, terms, own_b, factors_b);
            memset(row.sum, 0, row.size * sizeof(real));
            memset(other, 0, row.size * sizeof(real));
            for (long chain = 0; chain < splits && chain < nodes; chain++) {
                const long levels = NAME(chain_levels)(nodes, chain, splits);
                NAME(begin_chain)(&row, row.start + first + chain);
                if (unit_a != 0) {
                    BY_LEVELS(levels, chain_slopes, row.size, rank_a, (real)rule[POWER], -1, row.beta,
                              row.rate, factors_a + chain * rank_a * LEVELS, right_a, row.sum)
                }
                if (unit_b != 0) {
                    BY_LEVELS(levels, chain_slopes, row.size, rank_b, 0, -1, row.beta, row.rate,
                              factors_b + chain * rank_b * LEVELS, right_b, other)
                }
            }
            NAME(begin_block)(&row, row.start + first);
#pragma omp simd
            for (long j = 0; j < m; j++)
                total[j] += unit_a * (double)(row.sum[j] * row.g[j]) + unit_b * other[j];
        }
        for (long j = 0; j < m; j++) out[i * m + j] = (real)total[j];
    }
    return 0;
}

typedef bits NAME(words) __attribute__((vector_size(32), may_alias));

/* x where a comparison holds, y elsewhere. */
#define EITHER(holds, x, y)                                                                          \
    ((NAME(lanes))(((NAME(words))(holds) & (NAME(words))(x)) | (~(NAME(words))(holds) & (NAME(words))(y))))

/* Of the terms weights_j B_l(x_j) of each level the largest in size, and the sum of all others. */
static inline __attribute__((always_inline)) void NAME(chain_apart)(const int levels, long size,
                                                                    const real *beta,
                                                                    const real *weights, real *tops,
                                                                    real *rests) {
    const bits all_but_sign = (bits)~(bits)0 >> 1;
    NAME(lanes) top[LEVELS], rest[LEVELS];
    for (int l = 0; l < levels; l++) top[l] = rest[l] = (NAME(lanes)){0};
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), w = *(const NAME(lanes) *)(weights + j);
        for (int l = 0; l < levels; l++) {
            const NAME(lanes) term = w * b, before = top[l];
            const NAME(words) larger =
                (NAME(words))((NAME(lanes))((NAME(words))term & all_but_sign) >
                              (NAME(lanes))((NAME(words))before & all_but_sign));
            top[l] = EITHER(larger, term, before);
            rest[l] += EITHER(larger, before, term);
            b *= b;
        }
    }
    for (int l = 0; l < levels; l++) {
        tops[l] = rests[l] = 0;
        for (int k = 0; k < WIDTH; k++) {
            const real term = top[l][k];
            const int larger = (term < 0 ? -term : term) > (tops[l] < 0 ? -tops[l] : tops[l]);
            rests[l] += rest[l][k] + (larger ? tops[l] : term);
            tops[l] = larger ? term : tops[l];
        }
    }
}

/* out_j += Σ_l f_l G(x_j) B_l(x_j) Σ_{k≠j} weights_k B_l(x_k), and its slope with (offset − rate_l) B_l: the
 * sum of all others is the rest for the term that is apart, and a harmless difference for any other. Where
 * there is no G here, it is in the weights. Of the products A comes first: an underflow of f B would lose
 * what G makes of it. */
static inline __attribute__((always_inline)) void NAME(chain_others)(
    const int levels, long size, real offset, const double *scales, const real *g, const real *beta,
    const real *rates, const real *weights, const real *tops, const real *rests, real *out,
    real *slopes) {
    for (long j = 0; j < size; j += WIDTH) {
        NAME(lanes) b = *(const NAME(lanes) *)(beta + j), w = *(const NAME(lanes) *)(weights + j),
                    rate = *(const NAME(lanes) *)(rates + j), sum = *(NAME(lanes) *)(out + j),
                    slope = *(NAME(lanes) *)(slopes + j);
        for (int l = 0; l < levels; l++) {
            const NAME(lanes) term = w * b, apart = (NAME(lanes)){0} + rests[l];
            const NAME(lanes) others = EITHER(term == tops[l], apart, (tops[l] + rests[l]) - term);
            const NAME(lanes) part = g ? (real)scales[l] * b * *(const NAME(lanes) *)(g + j) * others
                                       : (real)scales[l] * others * b;
            sum += part, slope += (offset - rate) * part;
            b *= b, rate += rate;
        }
        *(NAME(lanes) *)(out + j) = sum;
        *(NAME(lanes) *)(slopes + j) = slope;
    }
}

/* Σ_{k≠j} K_ijk weights_k of all pairs (i, j), and its derivative with respect to x_ij, where nothing
 * cancels (§2, trust); with attract = 0 Σ_{j≠k} K_ijk weights_j of all pairs (i, k). work: 9 rows. */
FAST_LOOP static long NAME(term_pairs)(long rows, long m, long diagonal, long attract,
                                       const double *rule, const real *s, const real *tops,
                                       const int64_t *starts, const int64_t *counts,
                                       const real *weights, real *out, real *slopes, real *work) {
    NAME(row) row;
    NAME(take_room)(&row, rule, m, work);
    real *scaled = work + 6 * row.size, *sums = work + 7 * row.size, *slope = work + 8 * row.size;
    const long splits = (long)rule[SPLITS];
    const real offset = attract ? (real)rule[POWER] : 0;
    for (long i = 0; i < rows; i++) {
        NAME(enter)(&row, m, diagonal < 0 ? -1 : diagonal + i, s + i * m, tops[i], starts[i],
                    counts[i]);
        const long block = NAME(block_size)(&row);
        memset(out + i * m, 0, m * sizeof(real));
        memset(slopes + i * m, 0, m * sizeof(real));
        for (long first = 0; first < row.count; first += block) {
            const long nodes = row.count - first < block ? row.count - first : block;
            NAME(begin_block)(&row, row.start + first);
            for (long j = 0; j < m; j++) scaled[j] = attract ? weights[j] : weights[j] * row.g[j];
            for (long j = m; j < row.size; j++) scaled[j] = 0;
            memset(sums, 0, row.size * sizeof(real));
            memset(slope, 0, row.size * sizeof(real));
            for (long chain = 0; chain < splits && chain < nodes; chain++) {
                const long levels = NAME(chain_levels)(nodes, chain, splits);
                real top[LEVELS], rest[LEVELS];
                double scales[LEVELS];
                for (long l = 0; l < levels; l++) scales[l] = rule[SCALES + chain + l * splits];
                NAME(begin_chain)(&row, row.start + first + chain);
                BY_LEVELS(levels, chain_apart, row.size, row.beta, scaled, top, rest)
                BY_LEVELS(levels, chain_others, row.size, offset, scales, attract ? row.g : 0, row.beta,
                          row.rate, scaled, top, rest, sums, slope)
            }
            for (long j = 0; j < m; j++) out[i * m + j] += sums[j], slopes[i * m + j] += slope[j];
        }
    }
    return 0;
}

/* Of each row Σ_jk plus_j minus_k log(1 + e^{x_k − x_j}) and its gradient with respect to x, by Frullani's
 * integral (§3): h Σ_q near_q far_q, near_q = Σ_j plus_j B_q(x_j), far_q = Σ_k minus_k (1 − B_q(x_k)), from
 * the node on where the largest rate is TAIL; below it the first two powers of the rates are summed to the
 * end. work: 8 rows, and 2 numbers a node. */
FAST_LOOP static long NAME(pair_costs)(long rows, long m, const double *rule, const real *s,
                                       const real *plus, const real *minus, real *totals,
                                       real *gradient, real *work) {
    NAME(row) row;
    NAME(take_room)(&row, rule, m, work);
    real *positive = row.g, *negative = work + 6 * row.size, *nodes = work + 7 * row.size;
    const real h = (real)rule[STEP], growth = (real)exp(rule[STEP]);
    const long splits = (long)rule[SPLITS], block = splits * LEVELS;
    memset(positive, 0, row.size * sizeof(real));
    memset(negative, 0, row.size * sizeof(real));
    for (long i = 0; i < rows; i++) {
        const real *own = s + i * m;
        real top = -REAL_MAX, low = REAL_MAX, n_plus = 0, n_minus = 0;
        for (long j = 0; j < m; j++) {
            const real p = plus[i * m + j], q = minus[i * m + j];
            positive[j] = p, negative[j] = q, n_plus += p, n_minus += q;
            if (p + q > 0 && own[j] > top) top = own[j];
            if (p > 0 && own[j] < low) low = own[j];
        }
        totals[i] = 0;
        memset(gradient + i * m, 0, m * sizeof(real));
        if (n_plus == 0 || n_minus == 0) continue;
        NAME(enter)(&row, m, -1, own, top, 0, 0);
        const double highest = row.top, lowest = low * rule[FACTOR];
        row.start = (long)floor((rule[TAIL] - highest) / rule[STEP]);
        row.count = (long)ceil((rule[HEAD] - lowest) / rule[STEP]) - row.start + 1;
        /* Σ_{q < start} t_q and Σ_{q < start} t_q², t the rate of the largest x. */
        const real t = (real)exp(rule[STEP] * row.start + highest), first = h * t / (growth - 1),
                   second = h * t * t / (growth * growth - 1);
        real u_plus = 0, u_minus = 0, u_square = 0;
        for (long j = 0; j < m; j++) {
            u_plus += positive[j] * row.u[j], u_minus += negative[j] * row.u[j];
            u_square += negative[j] * row.u[j] * row.u[j];
        }
        real *near = nodes, *far = nodes + row.count;
        double total = (double)n_plus * u_minus * first -
                       ((double)u_plus * u_minus + (double)n_plus * u_square / 2) * second;
        memset(row.sum, 0, row.size * sizeof(real));
        for (int pass = 0; pass < 2; pass++) /* sums, then slopes */
            for (long begin = 0; begin < row.count; begin += block)
                for (long chain = begin; chain < begin + splits && chain < row.count; chain++) {
                    const long stop = begin + block < row.count ? begin + block : row.count;
                    const long levels = (stop - chain + splits - 1) / splits;
                    double sums[2][LEVELS] = {{0}, {0}};
                    real left[2][LEVELS];
                    NAME(begin_chain)(&row, row.start + chain);
                    if (pass == 0) {
                        BY_LEVELS(levels, chain_rows, row.size, row.beta, positive, sums[0])
                        BY_LEVELS(levels, chain_rows, row.size, row.beta, negative, sums[1])
                        for (long l = 0; l < levels; l++) {
                            near[chain + l * splits] = (real)sums[0][l];
                            far[chain + l * splits] = (real)(n_minus - sums[1][l]);
                            total += h * sums[0][l] * (n_minus - sums[1][l]);
                        }
                        continue;
                    }
                    for (long l = 0; l < levels; l++)
                        left[0][l] = h * far[chain + l * splits],
                        left[1][l] = h * near[chain + l * splits];
                    BY_LEVELS(levels, chain_slopes, row.size, 1, 0, -1, row.beta, row.rate, left[0],
                              positive, row.sum)
                    BY_LEVELS(levels, chain_slopes, row.size, 1, 0, 1, row.beta, row.rate, left[1],
                              negative, row.sum)
                }
        totals[i] = (real)total;
        for (long j = 0; j < m; j++) {
            const real u = row.u[j];
            gradient[i * m + j] =
                row.sum[j] - positive[j] * u * u_minus * second +
                negative[j] * u * (n_plus * first - (u_plus + n_plus * u) * second);
        }
    }
    return 0;
}
