/* Tiles of symmetric kernels, for one floating-point type.
 *
 * Included by _native.c like _sweeps.h. A tile has `rows` rows of a symmetric n×n matrix, from `row` on,
 * and `width` of its columns, from `column` on, row-major and dense. Its first `own` columns are a block
 * on the diagonal, to which its rows belong; every other entry stands for its mirror image too. A tile
 * off the diagonal has own = 0. See halves.py, which says why. Functions that it calls return a number.
 */

/* The largest ±s_ij − u_j of every row and, through the mirror images, of every column; without the
 * diagonal. First the half of +s, then, n numbers later, that of −s. */
FAST_LOOP static long NAME(tile_tops)(long rows, long width, long own, long row, long column, long n,
                                      const real *tile, const real *shifts, real *tops) {
    const long offset = row - column;
    const real *up = shifts + column, *down = shifts + n + column;
    real *top_up = tops + column, *top_down = tops + n + column;
    for (long i = 0; i < rows; i++) {
        const real *s = tile + i * width;
        const real mine_up = shifts[row + i], mine_down = shifts[n + row + i];
        real high = tops[row + i], low = tops[n + row + i];
        for (long j = 0; j < own; j++) {
            const real x = s[j] - up[j], y = -s[j] - down[j];
            high = j != i + offset && x > high ? x : high;
            low = j != i + offset && y > low ? y : low;
        }
#pragma omp simd reduction(max : high, low)
        for (long j = own; j < width; j++) {
            const real x = s[j] - up[j], y = -s[j] - down[j];
            const real to_x = s[j] - mine_up, to_y = -s[j] - mine_down;
            high = x > high ? x : high;
            low = y > low ? y : low;
            top_up[j] = to_x > top_up[j] ? to_x : top_up[j];
            top_down[j] = to_y > top_down[j] ? to_y : top_down[j];
        }
        tops[row + i] = high, tops[n + row + i] = low;
    }
    return 0;
}

/* exp(c · (sign·s_ij − u_i − u_j)), 0 on the diagonal. `out` may be the tile. */
FAST_LOOP static long NAME(tile_kernel)(long rows, long width, long own, long row, long column,
                                        double factor, const real *tile, const real *shifts,
                                        real *out) {
    const real *u_columns = shifts + column;
    const real sign = factor > 0 ? 1 : -1, c = (real)fabs(factor);
    for (long i = 0; i < rows; i++) {
        const real *s = tile + i * width, mine = shifts[row + i];
        real *o = out + i * width;
#pragma omp simd
        for (long j = 0; j < width; j++)
            o[j] = NAME(exponential)(c * ((sign * s[j] - mine) - u_columns[j]));
        if (own > 0) o[row - column + i] = 0;
    }
    return 0;
}

/* Add the tile and its mirror image, times x, to y; both of the tile's rows and of its columns. */
FAST_LOOP static void NAME(tile_product)(long rows, long width, long own, const real *tile,
                                         const real *x_rows, const real *x_columns, real *y_rows,
                                         real *y_columns) {
    long i = 0;
    for (; i + 4 <= rows; i += 4) { /* four rows at once: a quarter of the traffic on x and y */
        const real *r0 = tile + i * width, *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
        const real w0 = x_rows[i], w1 = x_rows[i + 1], w2 = x_rows[i + 2], w3 = x_rows[i + 3];
        real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (long j = 0; j < own; j++) {
            s0 += r0[j] * x_columns[j];
            s1 += r1[j] * x_columns[j];
            s2 += r2[j] * x_columns[j];
            s3 += r3[j] * x_columns[j];
        }
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (long j = own; j < width; j++) {
            s0 += r0[j] * x_columns[j];
            s1 += r1[j] * x_columns[j];
            s2 += r2[j] * x_columns[j];
            s3 += r3[j] * x_columns[j];
            y_columns[j] += (r0[j] * w0 + r1[j] * w1) + (r2[j] * w2 + r3[j] * w3);
        }
        y_rows[i] += s0, y_rows[i + 1] += s1, y_rows[i + 2] += s2, y_rows[i + 3] += s3;
    }
    for (; i < rows; i++) {
        const real *r = tile + i * width, w = x_rows[i];
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < own; j++) sum += r[j] * x_columns[j];
#pragma omp simd reduction(+ : sum)
        for (long j = own; j < width; j++) {
            sum += r[j] * x_columns[j];
            y_columns[j] += r[j] * w;
        }
        y_rows[i] += sum;
    }
}

/* The same for several tiles, which `parts` tells of: where they are in memory, then rows, width, own,
 * row, column. Backwards they begin with what the last product has left in the cache. */
static long NAME(tiles_product)(long count, int backwards, const int64_t *parts, const real *tiles,
                                const real *x, real *y) {
    for (long k = 0; k < count; k++) {
        const int64_t *p = parts + 6 * (backwards ? count - 1 - k : k);
        const long row = p[4], column = p[5];
        NAME(tile_product)(p[1], p[2], p[3], tiles + p[0], x + row, x + column, y + row, y + column);
    }
    return 0;
}

/* The same for the kernel of a tile of similarities at a row and a column of the matrix; four rows of
 * the kernel are in `work` at a time. */
static long NAME(tile_stream)(long rows, long width, long own, long row, long column, double factor,
                              const real *tile, const real *shifts, const real *x, real *y,
                              real *work) {
    for (long end = row + rows; row < end; row += 4, tile += 4 * width) {
        const long few = end - row < 4 ? end - row : 4;
        NAME(tile_kernel)(few, width, own, row, column, factor, tile, shifts, work);
        NAME(tile_product)(few, width, own, work, x + row, x + column, y + row, y + column);
    }
    return 0;
}

/* out = sign · weights ∘ tile, added if `out` is not `weights`; both have rows of length `stride`. */
FAST_LOOP static long NAME(tile_weigh)(long rows, long width, long stride, double sign,
                                       const real *tile, const real *weights, real *out) {
    const real factor = (real)sign, keep = out == weights ? 0 : 1;
    for (long i = 0; i < rows; i++) {
        const real *t = tile + i * width, *w = weights + i * stride;
        real *o = out + i * stride;
#pragma omp simd
        for (long j = 0; j < width; j++) o[j] = keep * o[j] + factor * w[j] * t[j];
    }
    return 0;
}
