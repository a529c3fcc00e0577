/* Sums over triplets with a hinge for ψ, by sorted rows, for one floating-point type of the scores.
 *
 * Included by _native.c like _sweeps.h; called by hinge_native.py, which says why. The kernel of a margin
 * t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin of the hinge and δ its
 * slope. Of a row of scores there are `x`, less its middle, and for every column its `rank` in ascending
 * order and `below`: how many negatives it satisfies as a positive, t > γ, all of which come first
 * (mathematics §9). Within one set the first row is that of sample `own`, the next that of own + 1, and a
 * sample is left out of its own row, with the rank after the last (own < 0: nobody is). */

#ifndef PAIR /* what both types share */
#define PAIR
typedef double pair __attribute__((vector_size(16), aligned(sizeof(double)), may_alias));
#endif

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
                             const double *similarity, real *x, uint16_t *rank, uint16_t *below,
                             double *widest, bits *work) {
    const long length = own < 0 ? m : m - 1;
    uint16_t *columns = (uint16_t *)(work + 2 * m);
    for (long i = 0; i < rows; i++, similarity += m, x += m, rank += m, below += m) {
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
        const real margin = (real)gap;
        for (long r = 0, k = 0; r < length; r++) { /* k: the first negative that r does not satisfy */
            while (x[column[r]] - x[column[k]] > margin) k++;
            rank[column[r]] = (uint16_t)r, below[column[r]] = (uint16_t)k;
        }
        if (own >= 0) rank[skipped] = (uint16_t)length, below[skipped] = 0;
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

/* The places of a row in ascending order, with `down` in descending order: their columns, and for each the
 * number of places before it that are satisfied. */
static void NAME(hinge_places)(int down, long m, long length, const uint16_t *rank,
                               const uint16_t *below, uint16_t *column, uint16_t *bound) {
    for (long j = 0; j < m; j++)
        if (rank[j] < length) column[down ? length - 1 - rank[j] : rank[j]] = (uint16_t)j;
    for (long r = 0, end = 0; r < length; r++) {
        if (down) /* the positives j < end do not satisfy this negative */
            while (end < length && below[column[length - 1 - end]] <= r) end++;
        bound[down ? length - 1 - r : r] = (uint16_t)(down ? length - end : below[column[r]]);
    }
}

/* The same sums for all columns of a row as positives, or as negatives (`down`), with both ends of the row
 * exchanged. With `apart` by that scan; else k = j is taken away from running sums, those over negatives
 * of rank < below and ≥ below, or over positives with below ≤ rank and > rank: one is the transpose of the
 * other. */
INLINED void NAME(hinge_sums)(int down, int apart, long m, long length, const uint16_t *rank,
                              const uint16_t *below, const double *flat, const double *steep,
                              double *satisfied, double *other, double *room, uint16_t *places) {
    if (apart) {
        memset(satisfied, 0, m * sizeof(double)), memset(other, 0, m * sizeof(double));
        NAME(hinge_places)(down, m, length, rank, below, places, places + m);
        NAME(hinge_scan)(length, places, places + m, flat, steep, satisfied, other, room,
                         room + m + 1, places + 2 * m);
        return;
    }
    pair *sums = (pair *)room;
    double *first = room, *last = room + 1, before = 0, behind = 0; /* of each pair */
    if (down) {
        memset(sums, 0, (length + 1) * sizeof(pair));
        for (long j = 0; j < m; j++) sums[below[j]] += (pair){steep[j], flat[j]};
        for (long r = 0, end = length - 1; r < length; r++, end--) { /* both at once hide latencies */
            const double term = last[2 * end];
            first[2 * r] = before += first[2 * r];
            last[2 * end] = behind;
            behind += term;
        }
    } else {
        for (long j = 0; j < m; j++) sums[rank[j]] = (pair){flat[j], steep[j]};
        for (long r = 0, end = length - 1; r < length; r++, end--) {
            const double term = first[2 * r];
            first[2 * r] = before;
            before += term;
            last[2 * end] = behind += last[2 * end];
        }
    }
    for (long j = 0; j < m; j++) {
        const pair both = sums[down ? rank[j] : below[j]];
        satisfied[j] = both[down], other[j] = both[!down] - steep[j];
    }
}

/* The trilinear form T(A, f, g) = Σ A_i f_j g_k K_ijk over some anchors, and its derivatives, those that
 * are asked for: ∂T/∂A in `sums`, ∂T/∂f and ∂T/∂g added to `to_f` and `to_g`, ∂T/∂x to `gradient`.
 * With masses A_i = mass_i / (∂T/∂A)_i is set here (marginal 1 of mathematics §2). With another vector e
 * the form is T(A, f, g) + T(B, e, g), B_i = −A_i (sums_i + A_i (∂T/∂A)_i) · mass_i, and `to_f` is
 * ∂/∂e: what the update of A has to do in the adjoint, once the weights of f are known (§4, unrolled). */
FAST_LOOP static long NAME(hinge_form)(long rows, long m, long own, long apart, double gap, double slope,
                                       const real *x, const uint16_t *rank, const uint16_t *below,
                                       double *A, const double *f, const double *g, const double *e,
                                       const double *mass, double *sums, double *to_f, double *to_g,
                                       real *gradient, double *work) {
    const int positives = to_f || gradient || !to_g, negatives = to_g || gradient;
    const double steepness = exp(-gap);
    const long length = own < 0 ? m : m - 1;
    const long room = m + 24; /* not a power of two: addresses 4096 bytes apart get in each other's way */
    double *mixed = work, *flat = mixed + room, *steep = flat + room, *satisfied = steep + room,
           *other = satisfied + room, *force = other + room, *pairs = force + room;
    real *up = (real *)(pairs + 2 * room), *down = up + room, *up_flat = down + room,
         *down_flat = up_flat + room;
    uint16_t *places = (uint16_t *)(down_flat + room);
    for (long j = 0; j < m; j++) up_flat[j] = down_flat[j] = 1;
    for (long i = 0; i < rows; i++, x += m, rank += m, below += m) {
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
            NAME(hinge_sums)(0, apart, m, length, rank, below, flat, steep, satisfied, other, pairs,
                             places);
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
            NAME(hinge_sums)(1, apart, m, length, rank, below, flat, steep, satisfied, other, pairs,
                             places);
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
                              const real *x, const uint16_t *rank, const uint16_t *below,
                              const real *plus, const real *minus, double *costs, real *gradient,
                              double *work) {
    const long length = own < 0 ? m : m - 1;
    double *near = work, *far = near + m + 1, *moment = far + m + 1;
    for (long i = 0; i < rows; i++, x += m, rank += m, below += m) {
        const real *up = plus + i * m, *down = minus + i * m;
        double total = 0, sum = 0, rest = 0, rest_moment = 0;
        memset(near, 0, (m + 1) * sizeof(double));
        for (long j = 0; j < m; j++) {
            far[rank[j]] = down[j], moment[rank[j]] = down[j] * (double)x[j];
            if (rank[j] < length) near[below[j]] += up[j];
        }
        for (long r = 0, end = length - 1; r < length; r++, end--) {
            near[r] = sum += near[r];                   /* Σ plus_j over below_j ≤ r */
            far[end] = rest += far[end];                /* Σ minus_k over ranks from `end` on */
            moment[end] = rest_moment += moment[end];   /* Σ minus_k x_k */
        }
        for (long j = 0; j < m; j++) {
            if (rank[j] == length) continue;
            const double unmet = far[below[j]];
            total += up[j] * ((gap - x[j]) * unmet + moment[below[j]] -
                              slope * (x[j] * far[0] - moment[0]));
            if (gradient)
                gradient[i * m + j] += (real)(scale * (down[j] * (near[rank[j]] + slope * sum) -
                                                       up[j] * (unmet + slope * far[0])));
        }
        costs[i] = total;
    }
    return 0;
}
