/* Sums over triplets with a hinge for ψ, by sorted rows, for one floating-point type of the scores.
 *
 * Included by _native.c like _sweeps.h; called by hinge_native.py, which says why. The kernel of a margin
 * t = x_j − x_k, in units of ε, is K = e^{δt} · min(1, e^{t − γ}), γ the margin of the hinge and δ its
 * slope. Of a row of scores there are `x`, less its middle, and for every column three places in ascending
 * order: its own, `low`, that of the first negative that it does not satisfy as a positive, t ≤ γ, and
 * `high`, that of the last positive by which it is not satisfied as a negative (mathematics §9). Within one
 * set the first row is that of sample `own`, the next that of own + 1, and a sample is left out of its own
 * row, with the place after the last (own < 0: nobody is). */

#ifndef PAIR /* what both types share */
#define PAIR
typedef double pair __attribute__((vector_size(16), aligned(sizeof(double)), may_alias));
typedef double pairs __attribute__((vector_size(64), aligned(sizeof(double)), may_alias));
typedef double four __attribute__((vector_size(32), aligned(sizeof(double)), may_alias));
typedef int64_t choice __attribute__((vector_size(64), aligned(sizeof(double)), may_alias));

/* A row is sorted in four quarters side by side: the next rank is four places on, at the end of a quarter
 * at the start of the next. */
static inline long quarter_of(long m) { return (m + 3) / 4; }
static inline long place_of(long rank, long quarter) { return 4 * (rank % quarter) + rank / quarter; }
static inline long rank_of(long place, long quarter) { return place % 4 * quarter + place / 4; }

/* Running sums over the places: of the first numbers from the start, of the second from the end, with that
 * of the place itself or (`before`, `behind`) without. All quarters go at once, each from the sum of those
 * ahead of it. */
INLINED void running_sums(int before, int behind, long quarter, pairs *sums) {
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

/* Put pairs of numbers in order, each at the place of its column. */
INLINED void to_places(long m, const uint16_t *place, const pair *numbers, pair *sums) {
    const long quarter = quarter_of(m);
#pragma GCC unroll 4
    for (long j = 0; j < m; j++) sums[place[j]] = numbers[j];
    for (long rank = m; rank < 4 * quarter; rank++) sums[place_of(rank, quarter)] = (pair){0, 0};
}

/* For each column the pair at some place. */
INLINED void from_places(long m, const uint16_t *place, const pair *sums, pair *numbers) {
#pragma GCC unroll 4
    for (long j = 0; j < m; j++) numbers[j] = sums[place[j]];
}

/* The same for single numbers, added up from the start, each with its own. */
INLINED void falling_sums(long m, const uint16_t *place, const uint16_t *bounds, double *numbers,
                          double *sums) {
    const long quarter = quarter_of(m);
    four *rows = (four *)sums, total = {0}, ahead = {0};
#pragma GCC unroll 4
    for (long j = 0; j < m; j++) sums[place[j]] = numbers[j];
    for (long rank = m; rank < 4 * quarter; rank++) sums[place_of(rank, quarter)] = 0;
    for (long o = 0; o < quarter; o++) total += rows[o];
    for (int lane = 1; lane < 4; lane++) ahead[lane] = ahead[lane - 1] + total[lane - 1];
    for (long o = 0; o < quarter; o++) rows[o] = ahead += rows[o];
#pragma GCC unroll 4
    for (long j = 0; j < m; j++) numbers[j] = sums[bounds[j]];
}

/* The same sums where nothing may be subtracted: Σ_{k < bound_r} of the first numbers and
 * Σ_{k ≥ bound_r, k ≠ r} of the second, for bounds that rise and do not exceed r. A window [bound, r) is the
 * sum from its start to a pivot and from there to its end. The first pivot is 0, and the next one the
 * first place whose window has left it. `column` says where a rank has its numbers and results. */
static void window_sums(long length, const uint16_t *column, const uint16_t *bound,
                        const pair *numbers, pair *sums, double *prefix, double *back,
                        uint16_t *pivots) {
    long number = 0;
    for (long r = 0; r < length; r++)
        if (number == 0 || bound[r] > pivots[number - 1]) pivots[number++] = (uint16_t)r;
    double all = 0, sum = 0;
    for (long part = number - 1, r = length - 1; part >= 0; part--) {
        double rest = 0;
        for (; r >= pivots[part]; r--) {
            const double term = numbers[column[r]][1];
            sums[column[r]][1] = all; /* Σ_{k > r} */
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
            sums[column[r]][0] = prefix[bound[r]];
            sums[column[r]][1] += back[bound[r]] + front;
            sum += numbers[column[r]][0];
            front += numbers[column[r]][1];
        }
    }
}

/* Those for all columns of a row as positives, or as negatives (`down`), with both ends of the row
 * exchanged. */
static void apart_sums(int down, long m, long length, const uint16_t *place, const uint16_t *bounds,
                       pair *numbers, pair *sums, double *room, uint16_t *column) {
    const long quarter = quarter_of(m), last = length - 1;
    uint16_t *bound = column + m;
    for (long j = 0; j < m; j++) {
        const long rank = rank_of(place[j], quarter), end = rank_of(bounds[j], quarter);
        if (rank == length) continue;
        column[down ? last - rank : rank] = (uint16_t)j;
        bound[down ? last - rank : rank] = (uint16_t)(down ? last - end : end);
    }
    if (down)
        for (long j = 0; j < m; j++) numbers[j] = (pair){numbers[j][1], numbers[j][0]};
    memset(sums, 0, m * sizeof(pair));
    window_sums(length, column, bound, numbers, sums, room, room + m + 1, column + 2 * m);
    for (long j = 0; j < m; j++) numbers[j] = down ? (pair){sums[j][1], sums[j][0]} : sums[j];
}
#endif

/* Sort the rows of a tile of c·s, less the middle of each row: by whole numbers of 24 bits (of 48 for
 * doubles) that divide a row evenly, byte by byte from the last. `widest` receives the largest distance
 * between two scores of a row. */
FAST_LOOP static long NAME(hinge_sort)(long rows, long m, long own, double gap, double factor,
                                       const double *similarity, real *x, uint16_t *place, uint16_t *low,
                                       uint16_t *high, double *widest, uint64_t *work) {
    enum { BYTES = 3 * sizeof(real) / 4, NEAR = 16 };
    const long length = own < 0 ? m : m - 1, quarter = quarter_of(m);
    const real margin = (real)gap;
    real *ordered = (real *)(work + 2 * m);
    uint16_t *places = (uint16_t *)(ordered + m + NEAR), *below = places + m, *until = below + m;
    for (long r = 0; r < m; r++) places[r] = (uint16_t)place_of(r, quarter);
    for (long i = 0; i < rows; i++, similarity += m, x += m, place += m, low += m, high += m) {
        uint32_t count[BYTES][256] = {{0}};
        uint64_t *word = work, *other = work + m;
        const long skipped = own < 0 ? m : own + i;
        double least = INFINITY, most = -INFINITY;
        for (int side = 0; side < 2; side++)
            for (long j = side ? skipped + 1 : 0; j < (side ? m : skipped); j++) {
                least = similarity[j] < least ? similarity[j] : least;
                most = similarity[j] > most ? similarity[j] : most;
            }
        const double middle = least + (most - least) / 2;
        const double steps = most > least ? (double)(((int64_t)1 << 8 * BYTES) - 1) / (most - least) : 0;
        *widest = fmax(*widest, factor * (most - least));
        for (long j = 0; j < m; j++) {
            x[j] = (real)(factor * (similarity[j] - middle));
            word[j] = (uint64_t)(int64_t)((similarity[j] - least) * steps) << 16 | (uint64_t)j;
        }
        if (own >= 0) {
            x[skipped] = 0;
            word[skipped] = word[length];
        }
        for (long r = 0; r < length; r++)
            for (int byte = 0; byte < BYTES; byte++) count[byte][word[r] >> (16 + 8 * byte) & 255]++;
        for (int byte = 0; byte < BYTES; byte++) {
            uint32_t *to = count[byte], next = 0;
            if (to[word[0] >> (16 + 8 * byte) & 255] == length) continue;
            for (int digit = 0; digit < 256; digit++) {
                const uint32_t some = to[digit];
                to[digit] = next;
                next += some;
            }
            for (long r = 0; r < length; r++) other[to[word[r] >> (16 + 8 * byte) & 255]++] = word[r];
            uint64_t *swapped = word;
            word = other, other = swapped;
        }
        for (long r = 0; r < length; r++) ordered[r] = x[word[r] & 65535], until[r] = 0;
        for (long r = length; r < length + NEAR; r++) ordered[r] = (real)INFINITY;
        /* k: the first negative that r does not satisfy, not far from where its first byte starts. */
        const uint32_t *ends = count[BYTES - 1];
        const double bins = steps / factor / ((int64_t)1 << 8 * (BYTES - 1));
        for (long r = 0, k = 0; r < length; r++) {
            const double bin = ((double)ordered[r] - gap - ordered[0]) * bins - 0.01;
            const long start = bin >= 1 ? ends[(int)bin - 1] : 0;
            const real *from = ordered + start, here = ordered[r];
            bits some = 0;
#pragma omp simd reduction(+ : some)
            for (int q = 0; q < NEAR; q++) some += here - from[q] > margin;
            k = start + (long)some > k ? start + (long)some : k;
            while (ordered[r] - ordered[k] > margin) k++;
            below[r] = (uint16_t)k, until[k] = (uint16_t)r;
        }
        uint16_t last = 0;
        for (long r = 0; r < length; r++) {
            const long j = word[r] & 65535;
            last = until[r] > last ? until[r] : last; /* the last positive with below ≤ r */
            place[j] = places[r], low[j] = places[below[r]], high[j] = places[last];
        }
        /* Nothing is before the first place or after the last: a sample satisfies nobody in its row. */
        if (own >= 0) place[skipped] = high[skipped] = places[length], low[skipped] = places[0];
    }
    return 0;
}

/* The trilinear form T(A, f, g) = Σ A_i f_j g_k K_ijk over some anchors, and its derivatives, those that
 * are asked for: ∂T/∂A in `sums`, ∂T/∂f and ∂T/∂g added to `to_f` and `to_g`, ∂T/∂x to `gradient`.
 * With masses A_i = mass_i / (∂T/∂A)_i is set here (marginal 1 of mathematics §2). With another vector e
 * the form is T(A, f, g) + T(B, e, g), B_i = −A_i (sums_i + A_i (∂T/∂A)_i) · mass_i, and `to_f` is
 * ∂/∂e: what the update of A has to do in the adjoint, once the weights of f are known (§4, unrolled).
 * A sum over k ≠ j is one over all k less that of k = j, with `apart` one that never had it. */
INLINED void NAME(form)(int sloped, long rows, long m, long own, long apart, double gap, double slope,
                        const real *x, const uint16_t *place, const uint16_t *low, const uint16_t *high,
                        double *A, const double *f, const double *g, const double *e, const double *mass,
                        double *sums, double *to_f, double *to_g, real *gradient, double *work) {
    const int positives = to_f || gradient || !to_g, negatives = to_g || gradient;
    /* A product is rounded before it is taken away, as it was when it was added. */
    const double steepness = exp(-gap), included = !apart;
    const long length = own < 0 ? m : m - 1, quarter = quarter_of(m);
    const long room = (m + 31) / 8 * 8; /* no power of two: addresses 4096 bytes apart collide */
    double *mixed = work, *whole = mixed + room, *falling = whole + room, *force = falling + room,
           *numbers = force + room, *running = numbers + 2 * room, *windows = running + 2 * room;
    real *up = (real *)(windows + 2 * room), *down = up + room, *up_flat = down + room,
         *down_flat = up_flat + room;
    uint16_t *ranks = (uint16_t *)(down_flat + room);
    for (long i = 0; i < rows; i++, x += m, place += m, low += m, high += m) {
        const long self = own < 0 ? m : own + i; /* m: nobody, in room of its own */
#pragma omp simd
        for (long j = 0; j < m; j++) {
            up[j] = NAME(exponential)((real)(1 + slope) * x[j]);
            down[j] = 1 / up[j];
        }
        if (sloped)
#pragma omp simd
            for (long j = 0; j < m; j++) {
                up_flat[j] = NAME(exponential)((real)slope * x[j]);
                down_flat[j] = 1 / up_flat[j];
            }
        up[self] = down[self] = 0;
        const double *plus = f;
        double weight = A[i];
        if (positives) {
            double sum = 0;
#pragma omp simd
            for (long j = 0; j < m; j++) {
                numbers[2 * j] = sloped ? down_flat[j] * g[j] : g[j];
                numbers[2 * j + 1] = down[j] * g[j];
            }
            numbers[2 * self] = 0;
            if (apart)
                apart_sums(0, m, length, place, low, (pair *)numbers, (pair *)running, windows, ranks);
            else {
                to_places(m, place, (pair *)numbers, (pair *)running);
                running_sums(1, 0, quarter, (pairs *)running);
                from_places(m, low, (pair *)running, (pair *)numbers);
            }
            /* R_j = Σ_{k≠j} K_ijk g_k, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < m; j++) {
                const double rest = numbers[2 * j + 1] - included * (down[j] * g[j]);
                const double fall = steepness * up[j] * rest;
                whole[j] = fall + (sloped ? up_flat[j] * numbers[2 * j] : numbers[2 * j]);
                falling[j] = sloped ? fall + slope * whole[j] : fall;
                sum += f[j] * whole[j];
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
                for (long j = 0; j < m; j++) to_f[j] += weight * whole[j];
            if (e) weight = 1;
            if (gradient)
#pragma omp simd
                for (long j = 0; j < m; j++) force[j] = plus[j] * falling[j];
        }
        if (negatives && !to_g && !apart && !sloped) { /* all that is wanted of them is what falls */
#pragma omp simd
            for (long j = 0; j < m; j++) numbers[j] = up[j] * plus[j];
            falling_sums(m, place, high, numbers, running);
#pragma omp simd
            for (long j = 0; j < m; j++)
                falling[j] = steepness * down[j] * (numbers[j] - included * (up[j] * plus[j]));
        } else if (negatives) {
            double sum = 0;
#pragma omp simd
            for (long j = 0; j < m; j++) {
                numbers[2 * j] = up[j] * plus[j];
                numbers[2 * j + 1] = sloped ? up_flat[j] * plus[j] : plus[j];
            }
            numbers[2 * self + 1] = 0;
            if (apart)
                apart_sums(1, m, length, place, high, (pair *)numbers, (pair *)running, windows, ranks);
            else {
                to_places(m, place, (pair *)numbers, (pair *)running);
                running_sums(0, 1, quarter, (pairs *)running);
                from_places(m, high, (pair *)running, (pair *)numbers);
            }
            /* Q_k = Σ_{j≠k} K_ijk f_j, and what of it falls with t. */
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < m; j++) {
                const double rest = numbers[2 * j] - included * (up[j] * plus[j]);
                const double fall = steepness * down[j] * rest;
                whole[j] = fall + (sloped ? down_flat[j] * numbers[2 * j + 1] : numbers[2 * j + 1]);
                falling[j] = sloped ? fall + slope * whole[j] : fall;
                sum += g[j] * whole[j];
            }
            if (!positives && sums) sums[i] = sum;
            if (to_g)
#pragma omp simd
                for (long j = 0; j < m; j++) to_g[j] += weight * whole[j];
        }
        if (gradient)
#pragma omp simd
            for (long j = 0; j < m; j++)
                gradient[i * m + j] += (real)(weight * (force[j] - g[j] * falling[j]));
    }
}

FAST_LOOP static long NAME(hinge_form)(long rows, long m, long own, long apart, double gap, double slope,
                                       const real *x, const uint16_t *place, const uint16_t *low,
                                       const uint16_t *high, double *A, const double *f, const double *g,
                                       const double *e, const double *mass, double *sums, double *to_f,
                                       double *to_g, real *gradient, double *work) {
    if (slope > 0)
        NAME(form)(1, rows, m, own, apart, gap, slope, x, place, low, high, A, f, g, e, mass, sums, to_f,
                   to_g, gradient, work);
    else
        NAME(form)(0, rows, m, own, apart, gap, 0, x, place, low, high, A, f, g, e, mass, sums, to_f, to_g,
                   gradient, work);
    return 0;
}

/* Σ_jk plus_j minus_k (max(0, γ − t) − δt) of each anchor. Its derivative by the scores, times `scale`, is
 * added to `gradient`: of a positive −(Σ_{t ≤ γ} minus_k + δ Σ minus_k), of a negative the same of
 * positives with the other sign. */
FAST_LOOP static long NAME(hinge_costs)(long rows, long m, long own, double gap, double slope, double scale,
                                        const real *x, const uint16_t *place, const uint16_t *low,
                                        const uint16_t *high, const real *plus, const real *minus,
                                        double *costs, real *gradient, double *work) {
    const long quarter = quarter_of(m);
    double *near = work, *far = near + m, *numbers = far + m, *running = numbers + 2 * m;
    for (long i = 0; i < rows; i++, x += m, place += m, low += m, high += m, plus += m, minus += m) {
        double total = 0, all_near = 0, all_far = 0;
#pragma omp simd
        for (long j = 0; j < m; j++) numbers[2 * j] = plus[j], numbers[2 * j + 1] = minus[j];
        if (own >= 0) numbers[2 * (own + i)] = numbers[2 * (own + i) + 1] = 0;
        to_places(m, place, (pair *)numbers, (pair *)running);
        running_sums(0, 0, quarter, (pairs *)running);
        for (long j = 0; j < m; j++) near[j] = running[2 * high[j]], far[j] = running[2 * low[j] + 1];
#pragma omp simd reduction(+ : total, all_near, all_far)
        for (long j = 0; j < m; j++) {
            all_near += plus[j], all_far += minus[j];
            total += plus[j] * (gap - x[j]) * far[j] + minus[j] * (double)x[j] * near[j];
        }
        if (slope > 0)
#pragma omp simd reduction(+ : total)
            for (long j = 0; j < m; j++)
                total += slope * (minus[j] * (double)x[j] * all_near - plus[j] * (double)x[j] * all_far);
        costs[i] = total;
        if (gradient)
#pragma omp simd
            for (long j = 0; j < m; j++)
                gradient[i * m + j] += (real)(scale * (minus[j] * (near[j] + slope * all_near) -
                                                       plus[j] * (far[j] + slope * all_far)));
    }
    return 0;
}
