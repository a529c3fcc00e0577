/* Sums over triplets with a hinge for ψ, by sorted rows, for one floating-point type of the scores.
 *
 * Included by _native.c like _sweeps.h; called by hinge_native.py, which says why. The kernel of a margin
 * t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin of the hinge and δ its
 * slope. Of a row of scores there are `x`, less its middle; `order`, its columns by ascending scores; and
 * of every column, as a positive j, `below`: how many in that order are negatives with t > γ, and as a
 * negative k, `end`: how many are positives with t ≤ γ. The first `below` negatives are satisfied, and all
 * positives from `end` on (mathematics §9). Within one set the first row is that of sample `own`, the next
 * that of own + 1, and a sample is left out of its own row (own < 0: nobody is). */

/* Bits that are ordered as the numbers are. */
static inline bits NAME(sortable)(real value) {
    bits word;
    memcpy(&word, &value, sizeof word);
    const bits sign = (bits)1 << (8 * sizeof word - 1);
    return word & sign ? ~word : word | sign;
}

static inline real NAME(sorted)(bits word) {
    const bits sign = (bits)1 << (8 * sizeof word - 1);
    word = word & sign ? word ^ sign : ~word;
    real value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Sort the rows of a tile of c·s, less the middle of each row, byte by byte from the last. `widest` receives
 * the largest distance between two scores of a row. */
static long NAME(hinge_sort)(long rows, long m, long own, double gap, double factor,
                             const double *similarity, real *x, uint16_t *order, uint16_t *below,
                             uint16_t *end, double *widest, bits *work) {
    const long length = own < 0 ? m : m - 1;
    uint16_t *columns = (uint16_t *)(work + 2 * m);
    for (long i = 0; i < rows; i++, similarity += m, x += m, order += m, below += m, end += m) {
        long count[sizeof(bits)][256] = {{0}};
        bits *key = work, *other_key = work + m;
        uint16_t *column = columns, *other_column = columns + m;
        const long skipped = own < 0 ? -1 : own + i;
        double low = INFINITY, high = -INFINITY;
        for (long j = 0; j < m; j++) {
            if (j == skipped) continue;
            low = similarity[j] < low ? similarity[j] : low;
            high = similarity[j] > high ? similarity[j] : high;
        }
        const double middle = low + (high - low) / 2;
        *widest = fmax(*widest, factor * (high - low));
        for (long j = 0, r = 0; j < m; j++) {
            x[j] = j == skipped ? 0 : (real)(factor * (similarity[j] - middle));
            if (j == skipped) continue;
            key[r] = NAME(sortable)(x[j]);
            for (size_t byte = 0; byte < sizeof(bits); byte++) count[byte][key[r] >> 8 * byte & 255]++;
            column[r++] = (uint16_t)j;
        }
        for (size_t byte = 0; byte < sizeof(bits); byte++) {
            long *place = count[byte], next = 0;
            if (place[key[0] >> 8 * byte & 255] == length) continue;
            for (int digit = 0; digit < 256; digit++) {
                const long some = place[digit];
                place[digit] = next;
                next += some;
            }
            for (long r = 0; r < length; r++) {
                const long to = place[key[r] >> 8 * byte & 255]++;
                other_key[to] = key[r], other_column[to] = column[r];
            }
            bits *swapped = key;
            key = other_key, other_key = swapped;
            uint16_t *exchanged = column;
            column = other_column, other_column = exchanged;
        }
        memcpy(order, column, length * sizeof *order);
        const real margin = (real)gap;
        long k = 0; /* the first negative that t = x_r − x_k does not satisfy */
        for (long r = 0; r < length; r++) {
            const real own_score = x[order[r]];
            for (; own_score - x[order[k]] > margin; k++) end[order[k]] = (uint16_t)r;
            below[order[r]] = (uint16_t)k;
        }
        for (; k < length; k++) end[order[k]] = (uint16_t)length;
        if (own >= 0) below[skipped] = end[skipped] = 0;
    }
    return 0;
}

/* satisfied_r = Σ_{k < bound_r} flat_k and other_r = Σ_{k ≥ bound_r, k ≠ r} steep_k of sorted numbers, for
 * bounds that rise and do not exceed r. Nothing is ever subtracted: a window [bound, r) is the sum from
 * its start to a pivot and from there to its end. The first pivot is 0, and the next one the first place
 * whose window has left it. `column` says where a place has its numbers and results. */
static void NAME(hinge_scan)(long length, const uint16_t *column, const uint16_t *bound,
                             const double *flat, const double *steep, double *satisfied, double *other,
                             double *prefix, double *back, uint16_t *pivots) {
    long number = 0;
    for (long r = 0; r < length; r++)
        if (number == 0 || bound[r] > pivots[number - 1]) pivots[number++] = (uint16_t)r;
    double all = 0, sum = 0;
    for (long part = number - 1, r = length - 1; part >= 0; part--) {
        double rest = 0;
        for (; r >= pivots[part]; r--) {
            const double term = steep[column[r]];
            other[column[r]] = all; /* Σ_{k > r} */
            all += term;
            back[r] = rest += term; /* from r to the next pivot */
        }
    }
    for (long part = 0, r = 0; part < number; part++) {
        const long stop = part + 1 < number ? pivots[part + 1] : length;
        double front = 0;
        back[r] = 0; /* a window that starts at the pivot */
        for (; r < stop; r++) {
            prefix[r] = sum;
            satisfied[column[r]] = prefix[bound[r]];
            other[column[r]] += back[bound[r]] + front;
            sum += flat[column[r]];
            front += steep[column[r]];
        }
    }
}

/* The same for all columns of a row, as positives; `apart`: by that scan, else k = j is taken away from
 * running sums. As negatives (`down`) with both ends of the row exchanged. */
INLINED void NAME(hinge_sums)(int down, int apart, long m, long length, const uint16_t *order,
                              const uint16_t *bound, const double *flat, const double *steep,
                              double *satisfied, double *other, double *prefix, double *back,
                              uint16_t *places) {
    if (apart) {
        uint16_t *column = places, *sorted = column + m, *pivots = sorted + m;
        memset(satisfied, 0, m * sizeof(double)), memset(other, 0, m * sizeof(double));
        for (long r = 0; r < length; r++) {
            column[r] = order[down ? length - 1 - r : r];
            sorted[r] = down ? (uint16_t)(length - bound[column[r]]) : bound[column[r]];
        }
        NAME(hinge_scan)(length, column, sorted, flat, steep, satisfied, other, prefix, back, pivots);
        return;
    }
    /* prefix_r = Σ_{k < r} and back_r = Σ_{k ≥ r}: two sums at once hide the latency of each. */
    const double *first = down ? steep : flat, *last = down ? flat : steep;
    double before = 0, behind = 0;
    back[length] = 0;
    for (long r = 0, end = length - 1; r < length; r++, end--) {
        prefix[r] = before;
        before += first[order[r]];
        back[end] = behind += last[order[end]];
    }
    prefix[length] = before;
    for (long j = 0; j < m; j++) {
        satisfied[j] = (down ? back : prefix)[bound[j]];
        other[j] = (down ? prefix : back)[bound[j]] - steep[j];
    }
}

/* The trilinear form T(A, f, g) = Σ A_i f_j g_k K_ijk over some anchors, and its derivatives, those that
 * are asked for: ∂T/∂A in `sums`, ∂T/∂f and ∂T/∂g added to `to_f` and `to_g`, ∂T/∂x to `gradient`.
 * With masses A_i = mass_i / (∂T/∂A)_i is set here (marginal 1 of mathematics §2). With another vector e
 * the form is T(A, f, g) + T(B, e, g), B_i = −A_i (sums_i + A_i (∂T/∂A)_i) · mass_i, and `to_f` is
 * ∂/∂e: what the update of A has to do in the adjoint, once the weights of f are known (§4, unrolled). */
FAST_LOOP static long NAME(hinge_form)(long rows, long m, long own, long apart, double gap, double slope,
                                       const real *x, const uint16_t *order, const uint16_t *below,
                                       const uint16_t *end, double *A, const double *f, const double *g,
                                       const double *e, const double *mass, double *sums, double *to_f,
                                       double *to_g, real *gradient, double *work) {
    const int positives = to_f || gradient || !to_g, negatives = to_g || gradient;
    const double steepness = exp(-gap);
    const long length = own < 0 ? m : m - 1;
    const long room = m + 24; /* not a power of two: addresses 4096 bytes apart get in each other's way */
    double *mixed = work, *flat = mixed + room, *steep = flat + room, *satisfied = steep + room,
           *other = satisfied + room, *force = other + room, *prefix = force + room,
           *back = prefix + room;
    real *up = (real *)(back + room), *down = up + room, *up_flat = down + room,
         *down_flat = up_flat + room;
    uint16_t *places = (uint16_t *)(down_flat + room);
    for (long j = 0; j < m; j++) up_flat[j] = down_flat[j] = 1;
    for (long i = 0; i < rows; i++, x += m, order += m, below += m, end += m) {
#pragma omp simd
        for (long j = 0; j < m; j++) {
            up[j] = NAME(exponential)((real)(1 + slope) * x[j]);
            down[j] = 1 / up[j];
        }
        if (slope > 0)
#pragma omp simd
            for (long j = 0; j < m; j++) {
                up_flat[j] = NAME(exponential)((real)slope * x[j]);
                down_flat[j] = 1 / up_flat[j];
            }
        if (own >= 0) up[own + i] = down[own + i] = up_flat[own + i] = down_flat[own + i] = 0;
        const double *plus = f;
        double weight = A[i];
        if (positives) {
            double sum = 0;
#pragma omp simd
            for (long j = 0; j < m; j++) flat[j] = down_flat[j] * g[j], steep[j] = down[j] * g[j];
            NAME(hinge_sums)(0, apart, m, length, order, below, flat, steep, satisfied, other, prefix,
                             back, places);
            /* R_j = Σ_{k≠j} K_ijk g_k, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < m; j++) {
                const double falling = steepness * up[j] * other[j];
                satisfied[j] = falling + up_flat[j] * satisfied[j];
                other[j] = falling + slope * satisfied[j];
                sum += f[j] * satisfied[j];
            }
            if (e) {
                const double before = weight;
                weight = -before * (sums[i] + before * sum) * mass[i];
#pragma omp simd
                for (long j = 0; j < m; j++) mixed[j] = before * f[j] + weight * e[j];
                plus = mixed;
            } else if (mass)
                A[i] = weight = mass[i] / sum;
            if (!e && sums) sums[i] = sum;
            if (to_f)
#pragma omp simd
                for (long j = 0; j < m; j++) to_f[j] += weight * satisfied[j];
            if (e) weight = 1;
            if (gradient)
#pragma omp simd
                for (long j = 0; j < m; j++) force[j] = plus[j] * other[j];
        }
        if (negatives) {
            double sum = 0;
#pragma omp simd
            for (long j = 0; j < m; j++) flat[j] = up_flat[j] * plus[j], steep[j] = up[j] * plus[j];
            NAME(hinge_sums)(1, apart, m, length, order, end, flat, steep, satisfied, other, prefix,
                             back, places);
            /* Q_k = Σ_{j≠k} K_ijk f_j, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < m; j++) {
                const double falling = steepness * down[j] * other[j];
                satisfied[j] = falling + down_flat[j] * satisfied[j];
                other[j] = falling + slope * satisfied[j];
                sum += g[j] * satisfied[j];
            }
            if (!positives && sums) sums[i] = sum;
            if (to_g)
#pragma omp simd
                for (long j = 0; j < m; j++) to_g[j] += weight * satisfied[j];
        }
        if (gradient)
#pragma omp simd
            for (long j = 0; j < m; j++)
                gradient[i * m + j] += (real)(weight * (force[j] - g[j] * other[j]));
        if (own >= 0) up_flat[own + i] = down_flat[own + i] = 1;
    }
    return 0;
}

/* Σ_jk plus_j minus_k (max(0, γ − t) − δt) of each anchor. Its derivative by the scores, times `scale`, is
 * added to `gradient`: of a positive −(Σ_{t ≤ γ} minus_k + δ Σ minus_k), of a negative the same of
 * positives with the other sign. */
static long NAME(hinge_costs)(long rows, long m, long own, double gap, double slope, double scale,
                              const real *x, const uint16_t *order, const uint16_t *below,
                              const uint16_t *end, const real *plus, const real *minus, double *costs,
                              real *gradient, double *work) {
    const long length = own < 0 ? m : m - 1;
    double *near = work, *far = near + m + 1, *moment = far + m + 1;
    for (long i = 0; i < rows; i++, x += m, order += m, below += m, end += m) {
        const real *up = plus + i * m, *down = minus + i * m;
        double total = 0;
        near[0] = far[length] = moment[length] = 0; /* Σ_{j < r} plus, Σ_{k ≥ r} minus and minus·x */
        for (long r = 0; r < length; r++) near[r + 1] = near[r] + up[order[r]];
        for (long r = length - 1; r >= 0; r--) {
            far[r] = far[r + 1] + down[order[r]];
            moment[r] = moment[r + 1] + down[order[r]] * (double)x[order[r]];
        }
        for (long j = 0; j < m; j++) {
            const double unmet = far[below[j]];
            if (own >= 0 && j == own + i) continue;
            total += up[j] * ((gap - x[j]) * unmet + moment[below[j]] -
                              slope * (x[j] * far[0] - moment[0]));
            if (gradient)
                gradient[i * m + j] += (real)(scale * (down[j] * (near[end[j]] + slope * near[length]) -
                                                       up[j] * (unmet + slope * far[0])));
        }
        costs[i] = total;
    }
    return 0;
}
