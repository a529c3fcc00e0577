/* The fast run: Sinkhorn sweeps and their adjoint as products with E = exp(c (s − middle)), 0 for an anchor
 * with itself, and with 1/E, entry by entry: one matrix serves both signs. A pass reads it once: it takes row
 * sums of E or 1/E, makes weights of them, and adds the columns of E or 1/E with these weights while the rows are
 * in the cache. Of several processes each has the rows of its own anchors; column sums end in one message.
 * Of triplets one reference o is apart: sums are over the others, x = E_io b_o and y = h_o/E_io are added where
 * j and k differ, and column o gets weights without them, so that o may hold all of a row (§2). */
INLINE real NAME(inverse)(real e) { return e > 0 ? 1 / e : 0; }

/* E from similarities, which it may overwrite; the caller knows that E and 1/E are normal numbers. */
FAST long NAME(kernel)(long n, long m, double c, double middle, const real *S, const int64_t *own, real *E,
                       long threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
#pragma omp simd
        for (long j = 0; j < m; j++) E[i * m + j] = NAME(exponential)((real)(c * ((double)S[i * m + j] - middle)));
        if (own[i] >= 0) E[i * m + own[i]] = 0;
    }
    return 0;
}

/* near = E ∘ near − 1/E ∘ far, a tile of the score gradient from column `first` on; if `near` is NULL, it is far. */
FAST long NAME(combine)(long n, long m, long first, const real *E, real *near, real *far, long threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long i = 0; i < n; i++) {
        const long width = m - first, at = i * width;
        const real *e = E + i * m + first, *x = near ? near + at : NULL, *y = far ? far + at : NULL;
        real *out = (near ? near : far) + at;
#pragma omp simd
        for (long j = 0; j < width; j++) out[j] = (x ? e[j] * x[j] : 0) - (y ? NAME(inverse)(e[j]) * y[j] : 0);
    }
    return 0;
}

/* What a pass makes of row sums, and where it is in a run. */
typedef struct NAME(step) {
    double (*weigh)(struct NAME(step) *, long i, double sum, double here, double e);
    const double *mass, *x, *y, *z;   /* of the rows */
    double *keep, *made, *left[4];    /* sums and weights, noted */
    double *rest, there, before;      /* weights for column o, o's scaling on the other side, and once on this */
    double total, scale, worst;       /* worst: smallest share that may be left after a subtraction */
    const int64_t *own;
    const double *bh;                 /* b h of each column, or its adjoint */
    int lost;                         /* whether less was */
} NAME(step);

/* Whether a difference kept its digits: of a sum of reals, and of a sum of doubles less its own term. */
#define KEPT(left, sum, excluded, worst) ((left) >= (worst) * (sum) && (left) >= 1e-3 * (excluded))

/* Where E is: stored, or some rows at a time, which `fetch` computes and the next call overwrites; and who
 * adds up the first numbers of a message over all processes, if there are several. The functions of a run take
 * k: n, m, sign of a pair plan, sweeps, whether there were sweeps before, rows that are fetched, threads;
 * x: tolerance, worst share that may be left; p: E, fetch, reduce, own, masses, then what each of them names. */
typedef struct {
    const real *matrix;
    void *fetch, *reduce;
    long height, apart; /* o, or −1 */
} NAME(source);

static int NAME(shared)(const NAME(source) *source, long length) {
    return !source->reduce || ask(source->reduce, length, 0) != NULL;
}

/* out_j = Σ_i weight_i E^{to}_ij, weight_i = weigh(i, Σ_j E^{from}_ij v_j, E^{from}_io v_o, E^{to}_io), j ≠ o.
 * Returns the smallest sum, in units of the largest v; −1 if no rows came. */
#define ROW(k) (E + (i + (k)-first) * m)
FAST static double NAME(pass)(long n, long m, int from, int to, const NAME(source) *source, const double *v,
                              NAME(step) *step, double *out, real *work, long threads) {
    const long o = source->apart;
    const double high = largest_size(v, m, o);
    double least = INFINITY, received = 0;
    real *unit = work, *parts = work + m;
    for (long j = 0; j < m; j++) unit[j] = j == o ? 0 : (real)(v[j] / high);
    memset(parts, 0, threads * m * sizeof(real));
    for (long first = 0, next; first < n; first = next) {
        next = source->matrix || n - first < source->height ? n : first + source->height;
        const real *E = source->matrix ? source->matrix : ask(source->fetch, first, next - first);
        if (!E) return -1;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(min : least) reduction(+ : received)
        for (long i = first; i < next; i += 4) {
            const long rows = next - i < 4 ? next - i : 4;
            const real *r0 = ROW(0), *r1 = rows > 1 ? ROW(1) : r0, *r2 = rows > 2 ? ROW(2) : r0,
                       *r3 = rows > 3 ? ROW(3) : r0;
            real *part = parts + omp_get_thread_num() * m, w[4] = {0, 0, 0, 0};
            double sums[4];
            real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
            if (from > 0)
#pragma omp simd reduction(+ : s0, s1, s2, s3)
                for (long j = 0; j < m; j++)
                    s0 += r0[j] * unit[j], s1 += r1[j] * unit[j], s2 += r2[j] * unit[j], s3 += r3[j] * unit[j];
            else
#pragma omp simd reduction(+ : s0, s1, s2, s3)
                for (long j = 0; j < m; j++)
                    s0 += NAME(inverse)(r0[j]) * unit[j], s1 += NAME(inverse)(r1[j]) * unit[j],
                        s2 += NAME(inverse)(r2[j]) * unit[j], s3 += NAME(inverse)(r3[j]) * unit[j];
            sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
            for (long k = 0; k < rows; k++) {
                least = sums[k] < least ? sums[k] : least;
                const double e = o < 0 ? 0 : ROW(k)[o], away = e > 0 ? 1 / e : 0;
                const double here = o < 0 ? 0 : (from > 0 ? e : away) * v[o], onto = to > 0 ? e : away;
                w[k] = (real)(step->weigh(step, i + k, sums[k] * high, here, onto) * step->scale);
                if (o >= 0) received += onto * step->rest[i + k];
            }
            if (!out) continue;
            const real w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
            if (to > 0)
#pragma omp simd
                for (long j = 0; j < m; j++) part[j] += (r0[j] * w0 + r1[j] * w1) + (r2[j] * w2 + r3[j] * w3);
            else
#pragma omp simd
                for (long j = 0; j < m; j++)
                    part[j] += (NAME(inverse)(r0[j]) * w0 + NAME(inverse)(r1[j]) * w1) +
                               (NAME(inverse)(r2[j]) * w2 + NAME(inverse)(r3[j]) * w3);
        }
    }
    if (out)
        for (long j = 0; j < m; j++) {
            double sum = 0;
            for (long t = 0; t < threads; t++) sum += parts[t * m + j];
            out[j] = j == o ? received : sum / step->scale;
        }
    return least;
}

/* Whether weights kept their digits: none but those of samples without mass vanished. */
static int NAME(kept)(const double *v, const double *mass, long m, long o) {
    double high = 0;
    for (long j = 0; j < m; j++) high = v[j] > high && j != o ? v[j] : high;
    for (long j = 0; j < m; j++)
        if (!(v[j] >= (j == o ? DBL_MIN : SMALLEST * high) || mass[j] == 0) || !(v[j] < INFINITY)) return 0;
    return high > 0;
}

/* Behind the columns of a message: for each column the values of the anchors that it is, and their sum. */
static void NAME(add_own)(long n, long m, const int64_t *own, const double *values, double *message) {
    double *mine = message + m, sum = 0;
    memset(mine, 0, m * sizeof(double));
    for (long i = 0; i < n; i++) {
        sum += values[i];
        if (own[i] >= 0) mine[own[i]] += values[i];
    }
    message[2 * m] = sum;
}

/* Marginal 1: a_i = p¹_i / (r⁺_i r⁻_i − Σ_{j≠own} b_j h_j + r⁺_i y_i + x_i r⁻_i), and a_i r⁻_i. x: r⁺. */
static double NAME(anchors)(NAME(step) *t, long i, double sum, double here, double e) {
    t->keep[i] = sum;
    const double all = t->x[i] * sum, taken = t->total - (t->own[i] >= 0 ? t->bh[t->own[i]] : 0);
    const double left = (all - taken) + t->x[i] * here + e * t->there * sum;
    if (t->mass[i] > 0 && !(KEPT(left, all, t->total, t->worst) && left < INFINITY)) t->lost = 1;
    t->made[i] = t->mass[i] > 0 ? t->mass[i] / left : 0;
    return t->rest[i] = t->made[i] * sum, t->made[i] * (sum + here);
}
/* a_i r⁺_i. */
static double NAME(onward)(NAME(step) *t, long i, double sum, double here, double e) {
    return (void)e, t->keep[i] = sum, t->rest[i] = t->x[i] * sum, t->x[i] * (sum + here);
}
static double NAME(noted)(NAME(step) *t, long i, double sum, double here, double e) {
    return (void)sum, (void)here, (void)e, t->x[i]; /* weights that are known */
}
/* Rows of a pair plan: u_i = p_i / r_i. */
static double NAME(rows)(NAME(step) *t, long i, double sum, double here, double e) {
    return (void)here, (void)e, t->keep[i] = sum, t->made[i] = t->mass[i] > 0 ? t->mass[i] / sum : 0;
}

/* b_j = p_j / (columns_j − h_j Σ_{i: own_i ≠ j} a_i) (marginal 2, or 3 with b for h); 0 if digits were lost. */
static int NAME(columns)(long m, const double *mass, const double *out, const double *partner,
                         const double *outside, double sum_a, double worst, double *made, long o) {
    int good = 1;
    for (long j = 0; j < m; j++) {
        const double left = out[j] - partner[j] * outside[j];
        good &= mass[j] == 0 || KEPT(left, out[j], j == o ? 0 : partner[j] * sum_a, worst);
        made[j] = mass[j] > 0 ? mass[j] / left : 0;
    }
    return good && NAME(kept)(made, mass, m, o);
}

/* Sweeps of a triplet plan (§2), from b and h in the first rows of B and H on (and from a in that of A, if `later`
 * says that there was a sweep before). History, one row for the start and one per sweep: A, B, H, RP = E b,
 * RM = h/E, OUTSIDE_j = Σ_{i: own_i ≠ j} a_i, 0 for o. Returns the number of sweeps done; −1 − that number if the next
 * one would lose digits: too little is left after a subtraction, a sum is near underflow, or a weight too small.
 * `message`: 2m + 3 numbers, columns first; `spare`: 2m and 2n. */
long NAME(triplet_solve)(const long *k, const double *x, void **p) {
    const long n = k[0], m = k[1], n_iters = k[3], later = k[4], threads = k[6], o = k[7];
    const NAME(source) source = {p[0], p[1], p[2], k[5], o};
    const double tol = x[0], worst = x[1];
    const int64_t *own = p[3];
    const double *p1 = p[4], *p2 = p1 + n, *p3 = p2 + m;
    double *A = p[5], *B = p[6], *H = p[7], *RP = p[8], *RM = p[9], *OUTSIDE = p[10];
    double *message = p[11], *out = message, *mine = out + m, *bh = p[12], *sums = bh + m, *rest = sums + n;
    real *work = p[13];
    NAME(step) start = {.weigh = NAME(onward), .x = A, .keep = RP, .rest = rest, .scale = 1};
    if (!NAME(kept)(B, p2, m, o) || !NAME(kept)(H, p3, m, o)) return -1;
    int lost = !(NAME(pass)(n, m, 1, 1, &source, B, &start, NULL, work, threads) >= LEAST);
    for (long t = 0; t < n_iters; t++) {
        double *a = A + (t + 1) * n, *b = B + t * m, *h = H + t * m, *b1 = b + m, *h1 = h + m, total = 0;
        double *outside = OUTSIDE + (t + 1) * m;
        for (long j = 0; j < m; j++) total += bh[j] = j == o ? 0 : b[j] * h[j];
        /* h → r⁻ → a (marginal 1) → E⁺ᵀ(a r⁻) → b (marginal 2) */
        NAME(step) near = {.weigh = NAME(anchors), .mass = p1, .x = RP + t * n, .keep = RM + t * n, .made = a,
                           .total = total, .own = own, .bh = bh, .worst = worst, .rest = rest, .there = b[o],
                           .scale = largest_size(b, m, o)};
        lost |= !(NAME(pass)(n, m, -1, 1, &source, h, &near, out, work, threads) >= LEAST);
        NAME(add_own)(n, m, own, a, message);
        message[2 * m + 1] = lost || near.lost;
        message[2 * m + 2] = 0;
        const int watched = tol >= 0 && t + later > 0;
        for (long i = 0; watched && i < n; i++)
            message[2 * m + 2] += a[i] > 0 ? fabs(p1[i] * (a[i - n] / a[i] - 1)) : 0;
        if (!NAME(shared)(&source, 2 * m + 3)) return -1 - t;
        const double sum_a = message[2 * m], error = message[2 * m + 2];
        for (long j = 0; j < m; j++) outside[j] = j == o ? 0 : sum_a - mine[j];
        if (message[2 * m + 1] > 0 || !NAME(columns)(m, p2, out, h, outside, sum_a, worst, b1, o)) return -1 - t;
        if (watched && error <= tol) { /* marginal 2 of the plan before, with its own a */
            NAME(step) check = {.weigh = NAME(onward), .x = a - n, .keep = sums, .rest = rest,
                                .scale = largest_size(b, m, o)};
            NAME(pass)(n, m, -1, 1, &source, h, &check, out, work, threads);
            NAME(add_own)(n, m, own, a - n, message);
            if (!NAME(shared)(&source, 2 * m + 1)) return -1 - t;
            double off = 0;
            for (long j = 0; j < m; j++)
                off += fabs(b[j] * (out[j] - (j == o ? 0 : h[j] * (message[2 * m] - mine[j]))) - p2[j]);
            if (off <= tol) return t;
        }
        /* b → r⁺ → E⁻ᵀ(a r⁺) → h (marginal 3) */
        NAME(step) far = {.weigh = NAME(onward), .x = a, .keep = RP + (t + 1) * n, .rest = rest,
                          .scale = largest_size(h, m, o)};
        message[m] = !(NAME(pass)(n, m, 1, -1, &source, b1, &far, out, work, threads) >= LEAST);
        if (!NAME(shared)(&source, m + 1)) return -1 - t;
        if (message[m] > 0 || !NAME(columns)(m, p3, out, b1, outside, sum_a, worst, h1, o)) return -1 - t;
    }
    return n_iters;
}

/* Adjoint, first half: gradient of a from the negatives' weights, and to_b += a · Σ wh/E. y: r⁺. */
static double NAME(from_negatives)(NAME(step) *t, long i, double sum, double here, double e) {
    const double a = t->x[i], near = t->y[i], outside = t->total - (t->own[i] >= 0 ? t->bh[t->own[i]] : 0);
    t->made[i] += a * ((near * sum - outside) + near * here + e * t->there * sum); /* ∂L/∂log a */
    t->left[0][i] = a * (near + e * t->there), t->left[1][i] = a * near;          /* a r⁺ */
    return t->rest[i] += a * sum, t->keep[i] += a * (sum + here);                 /* to_b */
}
/* Second half: marginal 1 sets a; weights of both kernels. y: r⁻₀, z: r⁺₀, made: ∂L/∂log a; to_h₀. */
static double NAME(from_positives)(NAME(step) *t, long i, double sum, double here, double e) {
    const double a = t->x[i], far = t->y[i], y = e * t->there, x = e > 0 ? t->before / e : 0;
    const double outside = t->total - (t->own[i] >= 0 ? t->bh[t->own[i]] : 0);
    const double gradient = t->made[i] + a * ((far * sum - outside) + far * here + y * sum);
    const double weight = t->made[i] = t->mass[i] > 0 ? -a * gradient / t->mass[i] : 0;
    t->left[0][i] = a * (far + y), t->left[1][i] = a * far;            /* a r⁻₀ */
    t->left[2][i] = weight * (far + y), t->left[3][i] = weight * far; /* to_b₀ */
    return t->rest[i] = a * sum + weight * t->z[i], t->keep[i] = a * (sum + here) + weight * (t->z[i] + x);
}

/* Weights −gradient/mass of each column, times its scaling; with another scaling times that. Sets the total and
 * the largest size, of all but o. */
static void NAME(weights)(long m, const double *gradient, const double *mass, const double *scaling,
                          const double *partner, double *made, double *both, double *total, double *high, long o) {
    *total = *high = 0;
    for (long j = 0; j < m; j++) {
        const double w = mass[j] > 0 ? -gradient[j] / mass[j] : 0;
        made[j] = w * scaling[j], *total += both[j] = j == o ? 0 : partner[j] * made[j];
        *high = fabs(w) > *high && j != o ? fabs(w) : *high;
    }
    if (!(*high > 0)) *high = 1;
}

/* Column o of Σ_k left_k right_kᵀ has other left vectors, `rest`: it becomes one more product, the last one. */
static void NAME(split)(long rows, long n, long m, long o, const int64_t *own, double *left, double *right,
                        const double *rest) {
    for (long k = 0; k < rows; right[k++ * m + o] = 0)
        for (long i = 0; i < n; i++) left[rows * n + i] += own[i] == o ? 0 : right[k * m + o] * rest[k * n + i];
    right[rows * m + o] = 1;
}

/* The adjoint of `sweeps` sweeps (§4, unrolled), two passes each. ∂L/∂E⁺ = Σ_t left⁺_t right⁺_tᵀ with
 * left⁺ = (to_b_0 … to_b_T, a r⁻_0 … a r⁻_{T−1}), right⁺ = (b_0 … b_T, wb_1 … wb_T), and one for column o, whose
 * left vectors come in LPO and LMO; E⁻ the same with h. Left and right begin as zeros. If there were sweeps before
 * (`later`), grad_b and grad_h are those of the start after the call. `spare`: m. */
long NAME(triplet_adjoint)(const long *k, void **p) {
    const long n = k[0], m = k[1], sweeps = k[3], later = k[4], threads = k[6], o = k[7];
    const NAME(source) source = {p[0], p[1], p[2], k[5], o};
    const int64_t *own = p[3];
    const double *p1 = p[4], *p2 = p1 + n, *p3 = p2 + m;
    const double *A = p[5], *B = p[6], *H = p[7], *RP = p[8], *RM = p[9], *OUTSIDE = p[10];
    double *grad_a = p[11], *grad_b = p[12], *grad_h = p[13], *LP = p[14], *WB = p[15], *LM = p[16], *WH = p[17];
    double *LPO = p[18], *LMO = p[19], *message = p[20], *out = message, *mine = message + m, *bw = p[21];
    real *work = p[22];
    for (long t = sweeps; t > 0; t--) {
        const double *a = A + t * n, *b = B + t * m, *h = H + t * m, *b0 = b - m, *h0 = h - m;
        const double *rp = RP + t * n, *rp0 = rp - n, *rm0 = RM + (t - 1) * n, *outside = OUTSIDE + t * m;
        const long before = (t - 1) * n, row = (sweeps + t) * n;
        double *wb = WB + (sweeps + t) * m, *wh = WH + (sweeps + t) * m, total, high;
        /* Marginal 3 set h: weights −∂L/∂log h · h/p³, through P¹³ to a and through P²³ to b. */
        NAME(weights)(m, grad_h, p3, h, b, wh, bw, &total, &high, o);
        NAME(step) first = {.weigh = NAME(from_negatives), .x = a, .y = rp, .made = grad_a, .keep = LP + t * n,
                            .rest = LPO + t * n, .left = {LM + row, LMO + row}, .total = total, .own = own, .bh = bw,
                            .there = b[o], .scale = largest_size(b, m, o) / high};
        NAME(pass)(n, m, -1, 1, &source, wh, &first, out, work, threads);
        if (!NAME(shared)(&source, m)) return -1;
        for (long j = 0; j < m; j++) grad_b[j] += b[j] * (out[j] - wh[j] * outside[j]);
        /* Marginal 2 set b: −∂L/∂log b · b/p², through P¹² to a and through P²³ to h₀. */
        NAME(weights)(m, grad_b, p2, b, h0, wb, bw, &total, &high, o);
        NAME(step) second = {.weigh = NAME(from_positives), .x = a, .y = rm0, .z = rp0, .made = grad_a,
                             .keep = LM + before, .rest = LMO + before, .mass = p1, .total = total, .own = own,
                             .left = {LP + row, LPO + row, LP + before, LPO + before}, .bh = bw, .there = h0[o],
                             .before = b0[o], .scale = largest_size(h0, m, o) / high};
        const int more = t > 1 || later;
        NAME(pass)(n, m, 1, -1, &source, wb, &second, more ? out : NULL, work, threads);
        if (more) NAME(add_own)(n, m, own, grad_a, message);
        if (more && !NAME(shared)(&source, 2 * m + 1)) return -1;
        memset(grad_a, 0, n * sizeof(double));
        for (long j = 0; more && j < m; j++) {
            const double others = j == o ? 0 : message[2 * m] - mine[j];
            grad_h[j] = h0[j] * (out[j] - wb[j] * outside[j] - b0[j] * others);
            grad_b[j] = -b0[j] * h0[j] * others; /* what goes through to_b₀ is added by the next pass */
        }
    }
    if (later) {
        NAME(step) rest = {.weigh = NAME(noted), .x = LP, .rest = LPO, .scale = largest_size(B, m, o)};
        NAME(pass)(n, m, 1, 1, &source, B, &rest, out, work, threads);
        if (!NAME(shared)(&source, m)) return -1;
        for (long j = 0; j < m; j++) grad_b[j] += B[j] * out[j];
    }
    memcpy(WB, B, (sweeps + 1) * m * sizeof(double)), memcpy(WH, H, (sweeps + 1) * m * sizeof(double));
    NAME(split)(2 * sweeps + 1, n, m, o, own, LP, WB, LPO);
    NAME(split)(2 * sweeps + 1, n, m, o, own, LM, WH, LMO);
    return 0;
}

/* Sweeps of a pair plan (§5) on E (sign 1) or 1/E (−1): u = p¹/(E v), v = p²/(Eᵀ u), one pass each.
 * `message`: m + 2 numbers. */
long NAME(pair_solve)(const long *k, const double *x, void **p) {
    const long n = k[0], m = k[1], sign = k[2], n_iters = k[3], later = k[4], threads = k[6];
    const NAME(source) source = {p[0], p[1], p[2], k[5], -1};
    const double *p1 = p[4], *p2 = p1 + n, tol = x[0];
    double *U = p[5], *V = p[6], *R = p[7], *message = p[8];
    real *work = p[10];
    if (!NAME(kept)(V, p2, m, -1)) return -1;
    for (long t = 0; t < n_iters; t++) {
        double *u = U + (t + 1) * n, *v = V + t * m;
        const double scale = largest_size(v, m, -1);
        NAME(step) both = {.weigh = NAME(rows), .mass = p1, .keep = R + t * n, .made = u, .scale = scale};
        message[m] = !(NAME(pass)(n, m, sign, sign, &source, v, &both, message, work, threads) >= LEAST);
        message[m + 1] = 0;
        const int watched = tol >= 0 && t + later > 0;
        for (long i = 0; watched && i < n; i++)
            message[m + 1] += u[i] > 0 ? fabs(p1[i] * (u[i - n] / u[i] - 1)) : 0;
        if (!NAME(shared)(&source, m + 2)) return -1 - t;
        if (watched && message[m + 1] <= tol) return t;
        for (long j = 0; j < m; j++) v[m + j] = p2[j] > 0 ? p2[j] / message[j] : 0;
        if (message[m] > 0 || !NAME(kept)(v + m, p2, m, -1)) return -1 - t;
    }
    return n_iters;
}

/* u's gradient is known: −∂L/∂log u · u/p¹ are the weights of the rows. */
static double NAME(back)(NAME(step) *t, long i, double sum, double here, double e) {
    const double gradient = t->made[i] + t->x[i] * sum;
    return (void)here, (void)e, t->made[i] = 0, t->keep[i] = t->mass[i] > 0 ? -t->x[i] * gradient / t->mass[i] : 0;
}

/* Its adjoint: ∂L/∂E = Σ_t left_t right_tᵀ, left = (l_1 … l_T, u_1 … u_T), right = (v_0 … v_{T−1}, w_1 … w_T). */
long NAME(pair_adjoint)(const long *k, void **p) {
    const long n = k[0], m = k[1], sign = k[2], sweeps = k[3], later = k[4], threads = k[6];
    const NAME(source) source = {p[0], p[1], p[2], k[5], -1};
    const double *p1 = p[4], *p2 = p1 + n, *U = p[5], *V = p[6];
    double *grad_u = p[8], *grad_v = p[9], *L = p[10], *W = p[11], *out = p[12], total;
    real *work = p[14];
    for (long t = sweeps; t > 0; t--) {
        const double *u = U + t * n, *v = V + t * m, *v0 = v - m;
        double *w = W + (sweeps + t - 1) * m, high;
        NAME(weights)(m, grad_v, p2, v, v, w, out, &total, &high, -1);
        NAME(step) both = {.weigh = NAME(back), .mass = p1, .x = u, .made = grad_u, .keep = L + (t - 1) * n,
                           .scale = largest_size(v0, m, -1) / high};
        const int more = t > 1 || later;
        NAME(pass)(n, m, sign, sign, &source, w, &both, more ? out : NULL, work, threads);
        if (more && !NAME(shared)(&source, m)) return -1;
        for (long j = 0; more && j < m; j++) grad_v[j] = v0[j] * out[j];
        memcpy(L + (sweeps + t - 1) * n, u, n * sizeof(double));
        memcpy(W + (t - 1) * m, v0, m * sizeof(double));
    }
    return 0;
}
