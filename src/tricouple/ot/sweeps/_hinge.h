/* Sums over triplets with a hinge for ψ, by sorted rows, for one floating-point type of the scores.
 *
 * Included by _native.c like _sweeps.h; called by hinge.py, which says why. The kernel of a margin
 * t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin of the hinge and δ its
 * slope. A row of scores is kept in ascending order: `x` less its middle, `order` the columns it came
 * from, `below` of a positive j the number of negatives with t > γ, all of which come first, and `above`
 * of a negative k, with both ends of the row exchanged, the number of positives (mathematics §9). */

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

/* Sort the rows of a tile of c·s, less the middle of each row, byte by byte from the last. Within one set
 * the first row is that of sample `own`, the next that of own + 1; a sample is left out of its own row
 * (own < 0: nobody is). `widest` receives the largest distance between two scores of a row. */
static long NAME(hinge_sort)(long rows, long m, long own, double gap, double factor,
                             const double *similarity, real *x, uint16_t *order, uint16_t *below,
                             uint16_t *above, double *widest, bits *work) {
    const long length = own < 0 ? m : m - 1;
    uint16_t *columns = (uint16_t *)(work + 2 * m);
    for (long i = 0; i < rows; i++, similarity += m, x += m, order += m, below += m, above += m) {
        long count[sizeof(bits)][256] = {{0}};
        bits *key = work, *other_key = work + m;
        uint16_t *column = columns, *other_column = columns + m;
        double low = INFINITY, high = -INFINITY;
        for (long j = 0; j < m; j++) {
            if (own >= 0 && j == own + i) continue;
            low = similarity[j] < low ? similarity[j] : low;
            high = similarity[j] > high ? similarity[j] : high;
        }
        const double middle = low + (high - low) / 2;
        *widest = fmax(*widest, factor * (high - low));
        for (long j = 0, r = 0; j < m; j++) {
            if (own >= 0 && j == own + i) continue;
            key[r] = NAME(sortable)((real)(factor * (similarity[j] - middle)));
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
        for (long r = 0; r < length; r++) x[r] = NAME(sorted)(key[r]), order[r] = column[r];
        long k = 0; /* the first negative that t = x_r − x_k does not satisfy */
        for (long r = 0; r < length; r++) {
            for (; x[r] - x[k] > margin; k++) above[length - 1 - k] = (uint16_t)(length - r);
            below[r] = (uint16_t)k;
        }
        for (; k < length; k++) above[length - 1 - k] = 0;
    }
    return 0;
}

/* satisfied_r = Σ_{k < bound_r} flat_k and other_r = Σ_{k ≥ bound_r, k ≠ r} steep_k, for bounds that
 * rise and do not exceed r; `down` counts places from the end. Nothing is ever subtracted: a window
 * [bound, r) is the sum from its start to a pivot and from there to its end. The first pivot is 0, and
 * the next one the first place whose window has left it, which the bounds of the `opposite` direction
 * tell. */
INLINED void NAME(hinge_scan)(int down, long length, const uint16_t *bound, const uint16_t *opposite,
                              const double *flat, const double *steep, double *satisfied, double *other,
                              double *prefix, double *back, uint16_t *pivots) {
    const long first = down ? length - 1 : 0, step = down ? -1 : 1;
    long number = 0;
    for (long r = 0; r < length; r = length - opposite[length - 1 - r]) pivots[number++] = (uint16_t)r;
    double all = 0, sum = 0;
    for (long part = number - 1, r = length - 1; part >= 0; part--) {
        double rest = 0;
        for (long at = first + step * r; r >= pivots[part]; r--, at -= step) {
            other[at] = all; /* Σ_{k > r} */
            all += steep[at];
            back[r] = rest += steep[at]; /* from r to the next pivot */
        }
    }
    for (long part = 0, r = 0; part < number; part++) {
        const long end = part + 1 < number ? pivots[part + 1] : length;
        double front = 0;
        back[r] = 0; /* a window that starts at the pivot */
        for (long at = first + step * r; r < end; r++, at += step) {
            prefix[r] = sum;
            satisfied[at] = prefix[bound[r]];
            other[at] += back[bound[r]] + front;
            sum += flat[at];
            front += steep[at];
        }
    }
}

/* The trilinear form T(A, f, g) = Σ A_i f_j g_k K_ijk over some anchors, and its derivatives, those that
 * are asked for: ∂T/∂A in `sums`, ∂T/∂f and ∂T/∂g added to `to_f` and `to_g`, ∂T/∂x, in sorted order, to
 * `gradient`.
 * With masses A_i = mass_i / (∂T/∂A)_i is set here (marginal 1 of mathematics §2). With another vector e
 * the form is T(A, f, g) + T(B, e, g), B_i = −A_i (sums_i + A_i (∂T/∂A)_i) · mass_i, and `to_f` is
 * ∂/∂e: what the update of A has to do in the adjoint, once the weights of f are known (§4, unrolled). */
FAST_LOOP static long NAME(hinge_form)(long rows, long m, long length, double gap, double slope,
                                       const real *x, const uint16_t *order, const uint16_t *below,
                                       const uint16_t *above, double *A, const double *f,
                                       const double *g, const double *e, const double *mass,
                                       double *sums, double *to_f, double *to_g, real *gradient,
                                       double *work) {
    const int positives = to_f || gradient || !to_g, negatives = to_g || gradient;
    const double steepness = exp(-gap);
    const long room = m + 24; /* not a power of two: addresses 4096 bytes apart get in each other's way */
    double *fs = work, *gs = fs + room, *flat = gs + room, *steep = flat + room,
           *satisfied = steep + room, *other = satisfied + room, *force = other + room,
           *prefix = force + room, *back = prefix + room;
    real *up = (real *)(back + room), *down = up + room, *up_flat = down + room,
         *down_flat = up_flat + room;
    uint16_t *pivots = (uint16_t *)(down_flat + room);
    for (long r = 0; r < length; r++) up_flat[r] = down_flat[r] = 1;
    for (long i = 0; i < rows; i++, x += m, order += m, below += m, above += m) {
#pragma omp simd
        for (long r = 0; r < length; r++) {
            up[r] = NAME(exponential)((real)(1 + slope) * x[r]);
            down[r] = 1 / up[r];
        }
        if (slope > 0)
#pragma omp simd
            for (long r = 0; r < length; r++) {
                up_flat[r] = NAME(exponential)((real)slope * x[r]);
                down_flat[r] = 1 / up_flat[r];
            }
        for (long r = 0; r < length; r++) fs[r] = f[order[r]], gs[r] = g[order[r]];
        double weight = A[i];
        if (positives) {
            double sum = 0;
#pragma omp simd
            for (long r = 0; r < length; r++) flat[r] = down_flat[r] * gs[r], steep[r] = down[r] * gs[r];
            NAME(hinge_scan)(0, length, below, above, flat, steep, satisfied, other, prefix, back, pivots);
            /* R_j = Σ_{k≠j} K_ijk g_k, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long r = 0; r < length; r++) {
                const double falling = steepness * up[r] * other[r];
                satisfied[r] = falling + up_flat[r] * satisfied[r];
                other[r] = falling + slope * satisfied[r];
                sum += fs[r] * satisfied[r];
            }
            if (e) {
                const double own = weight;
                weight = -own * (sums[i] + own * sum) * mass[i];
                for (long r = 0; r < length; r++) fs[r] = own * fs[r] + weight * e[order[r]];
            } else if (mass)
                A[i] = weight = mass[i] / sum;
            if (!e && sums) sums[i] = sum;
            if (to_f)
                for (long r = 0; r < length; r++) to_f[order[r]] += weight * satisfied[r];
            if (e) weight = 1;
            for (long r = 0; r < length; r++) force[r] = fs[r] * other[r];
        }
        if (negatives) {
            double sum = 0;
#pragma omp simd
            for (long r = 0; r < length; r++) flat[r] = up_flat[r] * fs[r], steep[r] = up[r] * fs[r];
            NAME(hinge_scan)(1, length, above, below, flat, steep, satisfied, other, prefix, back, pivots);
            /* Q_k = Σ_{j≠k} K_ijk f_j, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long r = 0; r < length; r++) {
                const double falling = steepness * down[r] * other[r];
                flat[r] = falling + down_flat[r] * satisfied[r];
                steep[r] = falling + slope * flat[r];
                sum += gs[r] * flat[r];
            }
            if (!positives && sums) sums[i] = sum;
            if (to_g)
                for (long r = 0; r < length; r++) to_g[order[r]] += weight * flat[r];
        }
        if (gradient)
#pragma omp simd
            for (long r = 0; r < length; r++)
                gradient[i * m + r] += (real)(weight * (force[r] - gs[r] * steep[r]));
    }
    return 0;
}

/* Rows in sorted order, put in the order of columns; what belongs to no pair is 0. */
static long NAME(hinge_unsort)(long rows, long m, long length, const uint16_t *order, real *gradient,
                               real *work) {
    for (long i = 0; i < rows; i++, order += m, gradient += m) {
        memcpy(work, gradient, length * sizeof(real));
        memset(gradient, 0, m * sizeof(real));
        for (long r = 0; r < length; r++) gradient[order[r]] = work[r];
    }
    return 0;
}

/* Σ_jk plus_j minus_k (max(0, γ − t) − δt) of each anchor. Its derivative by the scores, times `scale`, is
 * added to `gradient`: of a positive −(Σ_{t ≤ γ} minus_k + δ Σ minus_k), of a negative the same of
 * positives with the other sign. Weights come in the order of columns. */
static long NAME(hinge_costs)(long rows, long m, long length, double gap, double slope, double scale,
                              const real *x, const uint16_t *order, const uint16_t *below,
                              const uint16_t *above, const real *plus, const real *minus, double *costs,
                              real *gradient, double *work) {
    double *near = work, *far = near + m + 1, *moment = far + m + 1;
    for (long i = 0; i < rows; i++, x += m, order += m, below += m, above += m) {
        const real *up = plus + i * m, *down = minus + i * m;
        double total = 0;
        near[0] = far[length] = moment[length] = 0; /* Σ_{j < r} plus, Σ_{k ≥ r} minus and minus·x */
        for (long r = 0; r < length; r++) near[r + 1] = near[r] + up[order[r]];
        for (long r = length - 1; r >= 0; r--) {
            far[r] = far[r + 1] + down[order[r]];
            moment[r] = moment[r + 1] + down[order[r]] * (double)x[r];
        }
        for (long r = 0; r < length; r++) {
            const double unmet = far[below[r]];
            const long column = order[r], end = length - above[length - 1 - r];
            total += up[column] * ((gap - x[r]) * unmet + moment[below[r]] -
                                   slope * (x[r] * far[0] - moment[0]));
            if (gradient)
                gradient[i * m + column] +=
                    (real)(scale * (down[column] * (near[end] + slope * near[length]) -
                                    up[column] * (unmet + slope * far[0])));
        }
        costs[i] = total;
    }
    return 0;
}
