/* Sums over kernels that are known by their logarithms, for one floating-point type.
 *
 * Included by _native.c like _sweeps.h. A tile is some rows of the similarities, of type `score`: whole
 * numbers with nine digits are half of the memory of doubles, and enough for single precision. Exponents
 * c·s_ij + … are added up in double, and only their exponentials, never above e, are `real`. Within
 * one set the first row of the tile has its own sample in column `diagonal`; across two sets that is
 * negative. See log_tiles.py, which says why, and §2 of docs/mathematics.md (trust).
 */

/* Columns whose exponentials are added up in `real` before they are added in double; and rows. */
enum { NAME(CHUNK) = 256, NAME(BLOCK) = 16 };

/* Make room for a number, if it is one. */
static inline void NAME(widen)(double x, double *lowest, double *highest) {
    const int finite = x > -DBL_MAX / 2 && x < DBL_MAX / 2;
    *lowest = finite && x < *lowest ? x : *lowest;
    *highest = finite && x > *highest ? x : *highest;
}

static inline real NAME(bounded)(double x) { return NAME(exponential)((real)(x < 1 ? x : 1)); }

/* Σ exp(logs_j − scale). */
static inline double NAME(log_sum)(const double *logs, double scale, long m) {
    double sum = 0;
    for (long start = 0; start < m; start += NAME(CHUNK)) {
        const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
        real part = 0;
#pragma omp simd reduction(+ : part)
        for (long j = start; j < end; j++) part += NAME(exponential)((real)(logs[j] - scale));
        sum += part;
    }
    return sum;
}

/* log Σ_j exp(c s_ij + v_j) of every row, its largest term apart: where it is, its logarithm `top`, and
 * the logarithm of the sum of all others, `rest`. */
FAST_LOOP static long NAME(log_rows)(long rows, long m, long diagonal, double c, const score *tile,
                                     const double *v, int64_t *index, double *top, double *rest,
                                     double *work) {
    for (long i = 0; i < rows; i++, tile += m) {
        double high = -DBL_MAX;
        long at = 0;
        for (long start = 0; start < m; start += NAME(CHUNK)) {
            const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
            double few = -DBL_MAX;
#pragma omp simd
            for (long j = start; j < end; j++) work[j] = c * tile[j] + v[j];
            if (diagonal + i >= start && diagonal + i < end) work[diagonal + i] = -INFINITY;
#pragma omp simd reduction(max : few)
            for (long j = start; j < end; j++) few = work[j] > few ? work[j] : few;
            if (few > high) high = few, at = start;
        }
        while (at < m - 1 && work[at] < high) at++;
        work[at] = -INFINITY;
        double scale = high, sum = NAME(log_sum)(work, scale, m);
        if (sum < LITTLE) { /* the largest term is so large that the others may have been lost */
            scale = -DBL_MAX;
#pragma omp simd reduction(max : scale)
            for (long j = 0; j < m; j++) scale = work[j] > scale ? work[j] : scale;
            sum = NAME(log_sum)(work, scale, m);
        }
        index[i] = at;
        top[i] = high > -DBL_MAX ? high : -INFINITY;
        rest[i] = sum > 0 ? scale + log(sum) : -INFINITY;
    }
    return 0;
}

/* Add to the columns exp(weight_i + c s_ij) (1 − exp(−c s_ij + v_j − total_i)): the sum over j ≠ k of a
 * row, for every j. At column `apart_i` the term is exp(apart_weight_i + c s_ij) instead; without an
 * array for that (pairs) nothing is excluded. A column's sum is exp(peak_j) · sum_j. */
FAST_LOOP static long NAME(log_columns)(long rows, long m, long diagonal, double c,
                                        const score *tile, const double *weight,
                                        const int64_t *apart, const double *apart_weight,
                                        const double *v, const double *total, double *peak,
                                        double *sum, double *work) {
    double *logs = work, *high = work + NAME(BLOCK) * m, *excluded = high + m;
    real *part = (real *)(excluded + m);
    for (long first = 0; first < rows; first += NAME(BLOCK)) {
        const long end = first + NAME(BLOCK) < rows ? first + NAME(BLOCK) : rows;
        for (long j = 0; j < m; j++) high[j] = peak[j];
        for (long i = first; i < end; i++) {
            const score *s = tile + i * m;
            const double mine = weight[i];
            double *t = logs + (i - first) * m;
#pragma omp simd
            for (long j = 0; j < m; j++) t[j] = c * s[j] + mine;
            if (diagonal >= 0) t[diagonal + i] = -INFINITY;
            if (apart) {
                const long at = apart[i];
                const double own = c * s[at] + apart_weight[i];
                if (at != diagonal + i && own > high[at]) high[at] = own;
                t[at] = -INFINITY;
            }
#pragma omp simd
            for (long j = 0; j < m; j++) high[j] = t[j] > high[j] ? t[j] : high[j];
        }
#pragma omp simd
        for (long j = 0; j < m; j++) {
            sum[j] *= NAME(exponential)((real)(peak[j] - high[j]));
            peak[j] = high[j];
            part[j] = 0;
        }
        /* What is excluded is exp(weight_i − total_i + v_j − peak_j). */
        double lowest = INFINITY, highest = -INFINITY;
        for (long i = first; apart && i < end; i++)
            NAME(widen)(weight[i] - total[i], &lowest, &highest);
        for (long j = 0; apart && j < m; j++) NAME(widen)(peak[j] - v[j], &lowest, &highest);
        const double shift = (lowest + highest) / 2;
        const int separable = highest - lowest <= 2 * STEEP;
        if (apart && separable)
#pragma omp simd
            for (long j = 0; j < m; j++) { /* 0 in columns that have nothing yet */
                const double x = v[j] - peak[j] + shift;
                excluded[j] = x <= STEEP + 1 ? exponential_double(x) : 0;
            }
        for (long i = first; i < end; i++) {
            const score *s = tile + i * m;
            const double *t = logs + (i - first) * m;
            if (apart) {
                const double less = total[i];
                if (separable) {
                    const double mine = weight[i] > -INFINITY ? exp(weight[i] - less - shift) : 0;
                    const long at = apart[i], own = diagonal >= 0 ? diagonal + i : at;
                    const real before = part[at], before_own = part[own];
#pragma omp simd
                    for (long j = 0; j < m; j++)
                        part[j] += NAME(exponential)((real)(t[j] - peak[j])) -
                                   (real)(mine * excluded[j]);
                    part[at] = before, part[own] = before_own; /* nothing of theirs is here */
                } else
#pragma omp simd
                    for (long j = 0; j < m; j++)
                        part[j] += NAME(exponential)((real)(t[j] - peak[j])) *
                                   (1 - NAME(bounded)(v[j] - c * s[j] - less));
                const long at = apart[i];
                if (at != diagonal + i)
                    part[at] += (real)exp(c * s[at] + apart_weight[i] - peak[at]);
            } else
#pragma omp simd
                for (long j = 0; j < m; j++) part[j] += NAME(exponential)((real)(t[j] - peak[j]));
        }
        for (long j = 0; j < m; j++) sum[j] += part[j];
    }
    return 0;
}

/* Σ_j exp(c s_ij + v_j − rest_i) weights_j of every row, without column index_i: a mean. */
FAST_LOOP static long NAME(log_means)(long rows, long m, long diagonal, double c, const score *tile,
                                      const double *v, const int64_t *index, const double *rest,
                                      const double *weights, double *out) {
    for (long i = 0; i < rows; i++, tile += m) {
        const double scale = rest[i] > -INFINITY ? rest[i] : 0;
        double sum = 0;
        for (long start = 0; start < m; start += NAME(CHUNK)) {
            const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
            real part = 0, values[NAME(CHUNK)];
#pragma omp simd
            for (long j = start; j < end; j++)
                values[j - start] = NAME(bounded)(c * tile[j] + v[j] - scale) * (real)weights[j];
            if (index[i] >= start && index[i] < end) values[index[i] - start] = 0;
            if (diagonal + i >= start && diagonal + i < end) values[diagonal + i - start] = 0;
#pragma omp simd reduction(+ : part)
            for (long j = 0; j < end - start; j++) part += values[j];
            sum += part;
        }
        out[i] = sum;
    }
    return 0;
}

/* Rows and columns of a plan of pairs, or of the pairs (i, j) of a plan of triplets (§2, P¹² or P¹³),
 * times weights:
 *
 *     exp(total_i + c s_ij + v_j) (left_i + right_j) − exp(own_i + both_j) (row_i + column_j),
 *
 * the first for the sum over all k, the second for k = j, which is excluded; where that would cancel,
 * in column `apart_i`, exp(rest_i + c s_ij + v_j) (apart_left_i + right_j). `of_rows` is the first of
 * six vectors of length n (total, own, rest, left, apart_left, row), `of_columns` of four of length m
 * (v, both, right, column); without `apart` (pairs) nothing is excluded. */
FAST_LOOP static long NAME(log_plan)(long rows, long m, long n, long diagonal, double c,
                                     const score *tile, const double *of_rows,
                                     const double *of_columns, const int64_t *apart,
                                     double *row_sums, double *column_sums, double *work) {
    const double *v = of_columns, *both = v + m, *right = both + m, *column = right + m;
    double *excluded = work, lowest = INFINITY, highest = -INFINITY;
    real *values = (real *)(work + m), *part = values + m, *right_ = part + m, *column_ = right_ + m;
    for (long j = 0; j < m; j++) {
        part[j] = 0;
        right_[j] = (real)right[j], column_[j] = (real)column[j];
    }
    /* exp(own_i + both_j) as a product, if there is a shift for which neither factor overflows. */
    for (long i = 0; i < rows; i++) NAME(widen)(of_rows[n + i], &lowest, &highest);
    for (long j = 0; j < m; j++) NAME(widen)(-both[j], &lowest, &highest);
    const double shift = (lowest + highest) / 2;
    const int separable = apart && highest - lowest <= 2 * STEEP;
    for (long j = 0; separable && j < m; j++) excluded[j] = exp(both[j] + shift);
    for (long i = 0; i < rows; i++) {
        const score *s = tile + i * m;
        const double *x = of_rows + i;
        const double total = x[0], own = x[n];
        const real left = (real)x[3 * n], row = (real)x[5 * n];
        if (apart) {
            const long at = apart[i];
            if (separable) {
                const double mine = exp(own - shift);
#pragma omp simd
                for (long j = 0; j < m; j++)
                    values[j] = NAME(bounded)(c * s[j] + (total + v[j])) * (left + right_[j]) -
                                (real)(mine * excluded[j]) * (row + column_[j]);
            } else
#pragma omp simd
                for (long j = 0; j < m; j++)
                    values[j] = NAME(bounded)(c * s[j] + (total + v[j])) * (left + right_[j]) -
                                NAME(bounded)(own + both[j]) * (row + column_[j]);
            values[at] = (real)(exp(x[2 * n] + c * s[at] + v[at]) * (x[4 * n] + right[at]));
        } else
#pragma omp simd
            for (long j = 0; j < m; j++)
                values[j] = NAME(bounded)(c * s[j] + (total + v[j])) * (left + right_[j]);
        if (diagonal >= 0) values[diagonal + i] = 0;
        double sum = 0;
        for (long start = 0; start < m; start += NAME(CHUNK)) {
            const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
            real few = 0;
#pragma omp simd reduction(+ : few)
            for (long j = start; j < end; j++) {
                few += values[j];
                part[j] += values[j];
            }
            sum += few;
        }
        row_sums[i] = sum;
        if (i % NAME(BLOCK) == NAME(BLOCK) - 1 || i == rows - 1)
            for (long j = 0; j < m; j++) column_sums[j] += part[j], part[j] = 0;
    }
    return 0;
}

/* The entry of one plan in column j, as above, x and y with the row's and the columns' numbers. What is
 * excluded is left away, for it is the same in P¹² and in P¹³, whose gradients are opposite; but not in
 * column `other`, where the other of the two has its `apart`. */
static double NAME(log_entry)(long j, long n, long m, double pair, const double *x, const double *y,
                              long apart, long other) {
    if (j == apart) return exp(x[2 * n] + pair) * (x[4 * n] + y[2 * m + j]);
    const double entry = exp(x[0] + pair) * (x[3 * n] + y[2 * m + j]);
    return j == other ? entry - exp(x[n] + y[m + j]) * (x[5 * n] + y[3 * m + j]) : entry;
}

/* Add ± the pairs of `count` plans times weights to `out`. The plans have one v: all of them are
 * exp(scale_i + c s_ij + v_j) (left_i + gain_i right_j), but in the columns that one keeps apart.
 * `scales` is the first of three vectors of length n (scale, left, gain); `of_rows`, `of_columns`,
 * `apart` and `other` are as above, plan after plan. */
FAST_LOOP static long NAME(log_gradient)(long rows, long m, long n, long count, long diagonal,
                                         double c, double sign, const score *tile,
                                         const double *scales, const real *right,
                                         const double *of_rows, const double *of_columns,
                                         const int64_t *apart, const int64_t *other, real *out) {
    const double *v = of_columns;
    for (long i = 0; i < rows; i++) {
        const score *s = tile + i * m;
        const double scale = scales[i];
        const real left = (real)(sign * scales[n + i]), gain = (real)(sign * scales[2 * n + i]);
        real *o = out + i * m, before[2 * PLANS + 1];
        long special[2 * PLANS + 1], n_special = 0;
        if (diagonal >= 0) special[n_special++] = diagonal + i;
        for (long k = 0; apart && k < count; k++) {
            special[n_special++] = apart[k * n + i];
            special[n_special++] = other[k * n + i];
        }
        for (long k = 0; k < n_special; k++) before[k] = o[special[k]];
#pragma omp simd
        for (long j = 0; j < m; j++)
            o[j] += NAME(bounded)(c * s[j] + (scale + v[j])) * (left + gain * right[j]);
        for (long k = 0; k < n_special; k++) {
            const long j = special[k];
            double entry = 0;
            for (long plan = 0; j != diagonal + i && plan < count; plan++)
                entry += NAME(log_entry)(j, n, m, c * s[j] + v[j], of_rows + 6 * plan * n + i,
                                         of_columns + 4 * plan * m, apart[plan * n + i],
                                         other[plan * n + i]);
            o[j] = before[k] + (real)(sign * entry);
        }
    }
    return 0;
}
