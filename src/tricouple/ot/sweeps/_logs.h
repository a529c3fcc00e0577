/* Sums over kernels that are known by their logarithms, for one floating-point type.
 *
 * Included by _native.c like _sweeps.h. A tile is some rows of the similarities, in double; exponents
 * c·s_ij + … are added up in double too, and only their exponentials, never above e, are `real`. Within
 * one set the first row of the tile has its own sample in column `diagonal`; across two sets that is
 * negative. See log_tiles.py, which says why, and §2 of docs/mathematics.md (trust).
 */

/* Columns whose exponentials are added up in `real` before they are added in double; and rows. */
enum { NAME(CHUNK) = 256, NAME(BLOCK) = 16 };

static inline real NAME(bounded)(double x) { return NAME(exponential)((real)(x < 1 ? x : 1)); }

/* log Σ_j exp(c s_ij + v_j) of every row, its largest term apart: where it is, its logarithm `top`, and
 * the logarithm of the sum of all others, `rest`. */
FAST_LOOP static long NAME(log_rows)(long rows, long m, long diagonal, double c, const double *tile,
                                     const double *v, int64_t *index, double *top, double *rest,
                                     double *work) {
    for (long i = 0; i < rows; i++, tile += m) {
        double high = -DBL_MAX, second = -DBL_MAX, sum = 0;
#pragma omp simd
        for (long j = 0; j < m; j++) work[j] = c * tile[j] + v[j];
        if (diagonal >= 0) work[diagonal + i] = -INFINITY;
#pragma omp simd reduction(max : high)
        for (long j = 0; j < m; j++) high = work[j] > high ? work[j] : high;
        long at = 0;
        while (at < m - 1 && work[at] < high) at++;
        work[at] = -INFINITY;
#pragma omp simd reduction(max : second)
        for (long j = 0; j < m; j++) second = work[j] > second ? work[j] : second;
        for (long start = 0; start < m; start += NAME(CHUNK)) {
            const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
            real part = 0;
#pragma omp simd reduction(+ : part)
            for (long j = start; j < end; j++) part += NAME(exponential)((real)(work[j] - second));
            sum += part;
        }
        index[i] = at;
        top[i] = high > -DBL_MAX ? high : -INFINITY;
        rest[i] = sum > 0 ? second + log(sum) : -INFINITY;
    }
    return 0;
}

/* Add to the columns exp(weight_i + c s_ij) (1 − exp(−c s_ij + v_j − total_i)): the sum over j ≠ k of a
 * row, for every j. At column `apart_i` the term is exp(apart_weight_i + c s_ij) instead; without an
 * array for that (pairs) nothing is excluded. A column's sum is exp(peak_j) · sum_j. */
FAST_LOOP static long NAME(log_columns)(long rows, long m, long diagonal, double c,
                                        const double *tile, const double *weight,
                                        const int64_t *apart, const double *apart_weight,
                                        const double *v, const double *total, double *peak,
                                        double *sum, double *work) {
    double *logs = work, *high = work + NAME(BLOCK) * m;
    real *part = (real *)(high + m);
    for (long first = 0; first < rows; first += NAME(BLOCK)) {
        const long end = first + NAME(BLOCK) < rows ? first + NAME(BLOCK) : rows;
        for (long j = 0; j < m; j++) high[j] = peak[j];
        for (long i = first; i < end; i++) {
            const double *s = tile + i * m, mine = weight[i];
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
        for (long i = first; i < end; i++) {
            const double *s = tile + i * m, *t = logs + (i - first) * m;
            if (apart) {
                const double less = total[i];
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
FAST_LOOP static long NAME(log_means)(long rows, long m, long diagonal, double c, const double *tile,
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

/* Entries of a plan of pairs, or of the pairs (i, j) of a plan of triplets (§2, P¹² or P¹³), times
 * weights:
 *
 *     exp(total_i + c s_ij + v_j) (left_i + right_j) − exp(own_i + both_j) (row_i + column_j),
 *
 * the first for the sum over all k, the second for k = j, which is excluded; where that would cancel,
 * in column `apart_i`, exp(rest_i + c s_ij + v_j) (apart_left_i + right_j). Each of `of_rows` is the
 * first of six vectors of length `n` (total, own, rest, left, apart_left, row), `of_columns` of four of
 * length m (v, both, right, column); without `apart` (pairs) nothing is excluded.
 *
 * They are added to sums of rows and of columns; or, with `out` for an array of `real`, times `sign` to
 * that. There what is excluded is left away, for it is the same in P¹² and in P¹³, whose gradients are
 * opposite; but not in column `other_i`, where the other of the two has its `apart`. */
FAST_LOOP static long NAME(log_plan)(long rows, long m, long n, long diagonal, double c, double sign,
                                     const double *tile, const double *of_rows,
                                     const double *of_columns, const int64_t *apart,
                                     const int64_t *other, double *row_sums, double *column_sums,
                                     real *out, real *work) {
    const double *v = of_columns, *both = v + m, *right = both + m, *column = right + m;
    real *values = work, *part = work + m, *right_ = work + 2 * m, *column_ = work + 3 * m;
    for (long j = 0; j < m; j++) {
        part[j] = 0;
        right_[j] = (real)right[j], column_[j] = (real)column[j];
    }
    for (long i = 0; i < rows; i++) {
        const double *s = tile + i * m, *x = of_rows + i;
        const double total = x[0], own = x[n];
        const real left = (real)x[3 * n], row = (real)x[5 * n];
        if (apart && !out)
#pragma omp simd
            for (long j = 0; j < m; j++)
                values[j] = NAME(bounded)(c * s[j] + (total + v[j])) * (left + right_[j]) -
                            NAME(bounded)(own + both[j]) * (row + column_[j]);
        else
#pragma omp simd
            for (long j = 0; j < m; j++)
                values[j] = NAME(bounded)(c * s[j] + (total + v[j])) * (left + right_[j]);
        if (apart) {
            const long at = apart[i], away = other[i];
            if (out && away != at)
                values[away] -= (real)(exp(own + both[away]) * (x[5 * n] + column[away]));
            values[at] = (real)(exp(x[2 * n] + c * s[at] + v[at]) * (x[4 * n] + right[at]));
        }
        if (diagonal >= 0) values[diagonal + i] = 0;
        if (out) {
            real *o = out + i * m;
#pragma omp simd
            for (long j = 0; j < m; j++) o[j] += (real)sign * values[j];
            continue;
        }
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
