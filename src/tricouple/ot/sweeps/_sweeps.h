/* Sinkhorn sweeps and their adjoints for one floating-point type.
 *
 * Included by _native.c once with `real` = float and once with `real` = double. The formulas and
 * names are those of triplet.py, triplet_adjoint.py and pair.py, which say why they hold; sections are
 * those of docs/mathematics.md. Kernels are row-major n×m; the history of a run is a stack of vectors,
 * one row for the start and one for each sweep. Functions that native.py calls return a number.
 */

/* Σ_j kernel_ij weights_j. */

FAST_LOOP static void NAME(rows)(const real *kernel, const real *weights, real *out, long n, long m) {
    long i = 0;
    for (; i + 4 <= n; i += 4) { /* four sums at once hide the latency of each */
        const real *r0 = kernel + i * m, *r1 = r0 + m, *r2 = r1 + m, *r3 = r2 + m;
        real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (long j = 0; j < m; j++) {
            s0 += r0[j] * weights[j];
            s1 += r1[j] * weights[j];
            s2 += r2[j] * weights[j];
            s3 += r3[j] * weights[j];
        }
        out[i] = s0, out[i + 1] = s1, out[i + 2] = s2, out[i + 3] = s3;
    }
    for (; i < n; i++) {
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < m; j++) sum += kernel[i * m + j] * weights[j];
        out[i] = sum;
    }
}

/* Σ_i kernel_ij weights_i. */
FAST_LOOP static void NAME(columns)(const real *kernel, const real *weights, real *out, long n, long m) {
    memset(out, 0, m * sizeof(real));
    long i = 0;
    for (; i + 4 <= n; i += 4) { /* four rows at once: a quarter of the traffic on `out` */
        const real *r0 = kernel + i * m, *r1 = r0 + m, *r2 = r1 + m, *r3 = r2 + m;
        const real w0 = weights[i], w1 = weights[i + 1], w2 = weights[i + 2], w3 = weights[i + 3];
#pragma omp simd
        for (long j = 0; j < m; j++)
            out[j] += (r0[j] * w0 + r1[j] * w1) + (r2[j] * w2 + r3[j] * w3);
    }
    for (; i < n; i++)
        for (long j = 0; j < m; j++) out[j] += kernel[i * m + j] * weights[i];
}

/* exp(x) where it does not overflow; exactly 0 where that is hardly above the smallest normal number.
 * x = k log 2 + rest; adding SHIFT leaves k in the last bits, from where it becomes an exponent. */
static inline real NAME(exponential)(real x) {
    const real floor = (real)EXP_LOW, low = x < floor ? floor : x;
    const real shifted = low * (real)LOG2_E + SHIFT, k = shifted - SHIFT;
    const real rest = (low - k * LN2_HIGH) - k * LN2_LOW;
    real sum = (real)SERIES[DEGREE];
    for (int i = DEGREE - 1; i >= 0; i--) sum = sum * rest + (real)SERIES[i];
    bits word;
    memcpy(&word, &shifted, sizeof word);
    word = (word + EXPONENT_BIAS) << MANTISSA;
    real power;
    memcpy(&power, &word, sizeof power);
    return x < floor ? 0 : sum * power;
}

/* exp(c · (±s − top of row − top of column)), a balanced kernel E± (§2, trust), with its tops. */
FAST_LOOP static long NAME(balance)(long n, long m, int within, double sharpness,
                                    const real *similarity, real *out, real *top_rows,
                                    real *top_columns) {
    const real sign = sharpness > 0 ? 1 : -1, c = (real)fabs(sharpness), none = -(real)INFINITY;
    for (long j = 0; j < m; j++) top_columns[j] = none;
    for (long i = 0; i < n; i++) {
        const real *s = similarity + i * m;
        real *o = out + i * m, top = none;
#pragma omp simd
        for (long j = 0; j < m; j++) o[j] = sign * s[j];
        if (within) o[i] = none;
#pragma omp simd reduction(max : top)
        for (long j = 0; j < m; j++) top = o[j] > top ? o[j] : top;
        top_rows[i] = top = top > -REAL_MAX ? top : -REAL_MAX;
#pragma omp simd
        for (long j = 0; j < m; j++) {
            o[j] -= top;
            top_columns[j] = o[j] > top_columns[j] ? o[j] : top_columns[j];
        }
    }
    for (long j = 0; j < m; j++)
        top_columns[j] = top_columns[j] > -REAL_MAX ? top_columns[j] : -REAL_MAX;
    for (long i = 0; i < n; i++)
#pragma omp simd
        for (long j = 0; j < m; j++)
            out[i * m + j] = NAME(exponential)(c * (out[i * m + j] - top_columns[j]));
    return 0;
}

/* Σ x·y·z, the totals that exclusions are made of. */
static double NAME(dot3)(const real *x, const real *y, const real *z, long size) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < size; i++) sum += (double)(x[i] * y[i]) * z[i];
    return sum;
}

static double NAME(dot)(const real *x, const real *y, long size) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < size; i++) sum += (double)x[i] * y[i];
    return sum;
}

static double NAME(distance)(const real *x, const real *y, const real *mass, long size) {
    double sum = 0;
    for (long i = 0; i < size; i++) sum += fabs((double)x[i] * y[i] - mass[i]);
    return sum;
}

/* Σ over all but its own sample within one set, over all samples across two. */
static inline real NAME(outside)(double total, real own, int within) {
    return within ? (real)(total - own) : (real)total;
}

/* (E⁺ᵀ (a ∘ r⁻))_j − h_j Σ_{i≠j} a_i, what b_j is multiplied by in marginal 2 (§2); for marginal 3
 * (E⁻ᵀ (a ∘ r⁺))_k − b_k Σ_{i≠k} a_i. `total` is Σ_i row_i a_i. */
static void NAME(partner_sums)(const real *kernel, const real *a, const real *sums,
                               const real *other, const real *row, const real *column,
                               double total, int within, real *work, real *out, long n, long m) {
    for (long i = 0; i < n; i++) work[i] = a[i] * sums[i];
    NAME(columns)(kernel, work, out, n, m);
    for (long j = 0; j < m; j++)
        out[j] -= other[j] * column[j] * NAME(outside)(total, within ? row[j] * a[j] : 0, within);
}

/* The sweeps of §2 from the one after `start` on, four products each; `row_i · column_j` is what j = k excludes. */
static long NAME(triplet_sweeps)(long n, long m, int within, long start, long n_iters, double tol,
                                 const real *attract, const real *repel, const real *row,
                                 const real *column, const real *mass_a, const real *mass_b,
                                 const real *mass_h, real *A, real *B, real *H, real *RP, real *RM,
                                 real *work) {
    real *sums = work, *weighted = work + n, *out = work + 2 * n;
    if (start == 0) {
        NAME(rows)(attract, B, RP, n, m); /* r⁺ = E⁺ b */
        NAME(rows)(repel, H, RM, n, m);   /* r⁻ = E⁻ h */
    }
    long t = start;
    for (; t < n_iters; t++) {
        real *a = A + (t + 1) * n, *b = B + t * m, *h = H + t * m, *rp = RP + t * n,
             *rm = RM + t * n;
        /* r⁺_i r⁻_i − Σ_{j≠i} b_j h_j, of marginal 1. */
        double total = NAME(dot3)(column, b, h, m);
        for (long i = 0; i < n; i++)
            sums[i] = rp[i] * rm[i] -
                      row[i] * NAME(outside)(total, within ? column[i] * b[i] * h[i] : 0, within);
        /* Marginals 1 and 2 of the sweep before; the third is exact after a sweep. */
        if (tol >= 0 && t > 0 && NAME(distance)(a - n, sums, mass_a, n) <= tol) {
            NAME(partner_sums)(attract, a - n, rm, h, row, column, NAME(dot)(row, a - n, n),
                               within, weighted, out, n, m);
            if (NAME(distance)(b, out, mass_b, m) <= tol) break;
        }
        /* Marginal 1: a_i = p¹_i / [r⁺_i r⁻_i − Σ_{j≠i} b_j h_j]. */
        for (long i = 0; i < n; i++) a[i] = mass_a[i] / sums[i];
        total = NAME(dot)(row, a, n);
        /* Marginal 2: b_j = p²_j / [(E⁺ᵀ (a ∘ r⁻))_j − h_j Σ_{i≠j} a_i]. */
        NAME(partner_sums)(attract, a, rm, h, row, column, total, within, weighted, out, n, m);
        for (long j = 0; j < m; j++) b[m + j] = mass_b[j] / out[j];
        NAME(rows)(attract, b + m, rp + n, n, m); /* r⁺ = E⁺ b */
        /* Marginal 3: h_k = p³_k / [(E⁻ᵀ (a ∘ r⁺))_k − b_k Σ_{i≠k} a_i]. */
        NAME(partner_sums)(repel, a, rp + n, b + m, row, column, total, within, weighted, out, n, m);
        for (long j = 0; j < m; j++) h[m + j] = mass_h[j] / out[j];
        NAME(rows)(repel, h + m, rm + n, n, m); /* r⁻ = E⁻ h */
    }
    return t;
}

static real NAME(largest)(const real *x, const real *y, long size) {
    real top = 0;
#pragma omp simd reduction(max : top)
    for (long i = 0; i < size; i++) {
        real value = y ? x[i] * y[i] : x[i];
        top = value > top ? value : top;
    }
    return top;
}

/* The smallest entry, and NaN if one is. */
static real NAME(smallest)(const real *x, long size) {
    real low = (real)INFINITY, sum = 0;
#pragma omp simd reduction(min : low) reduction(+ : sum)
    for (long i = 0; i < size; i++) {
        low = x[i] < low ? x[i] : low;
        sum += x[i];
    }
    return sum == sum ? low : sum;
}

/* What the sweeps lost: out[0] to cancellation, out[1] to underflow, relative to what they kept;
 * infinity if a scaling is not a positive number (§2, trust). The terms are those of `trustworthy`
 * in triplet.py. */
static void NAME(triplet_losses)(long n, long m, long sweeps, double eps, const real *row,
                                 const real *column, const real *per_a, const real *per_b,
                                 const real *per_h, const real *A, const real *B, const real *H,
                                 const real *RP, const real *RM, double *out) {
    real cancelled = 0, heavy_b = 0, heavy_h = 0, per_column_b = 0, per_column_h = 0;
    for (long t = 0; t < sweeps; t++) {
        const real *a = A + (t + 1) * n, *b = B + t * m, *h = H + t * m;
        const real *rm = RM + t * n, *rp = RP + (t + 1) * n;
        /* Σ_j b_j h_j and Σ_i a_i. */
        real taken = (real)NAME(dot3)(column, b, h, m), lost = (real)NAME(dot)(row, a, n);
#pragma omp simd reduction(max : cancelled, heavy_b, heavy_h)
        for (long i = 0; i < n; i++) {
            /* a_i Σ_j b_j h_j / p¹_i, marginal 1; and a r⁻, a r⁺, the weights of the columns. */
            real own = row[i] * a[i] * (taken * per_a[i]), x = a[i] * rm[i], y = a[i] * rp[i];
            cancelled = own > cancelled ? own : cancelled;
            heavy_b = x > heavy_b ? x : heavy_b;
            heavy_h = y > heavy_h ? y : heavy_h;
        }
#pragma omp simd reduction(max : cancelled, per_column_b, per_column_h)
        for (long j = 0; j < m; j++) {
            /* b_j h_j Σ_i a_i / p²_j, marginal 2, and the same / p³_j with the new h, marginal 3. */
            real own = b[m + j] * column[j] * lost;
            real x = own * h[j] * per_b[j], y = own * h[m + j] * per_h[j];
            real p = b[m + j] * per_b[j], q = h[m + j] * per_h[j];
            cancelled = x > cancelled ? x : cancelled;
            cancelled = y > cancelled ? y : cancelled;
            per_column_b = p > per_column_b ? p : per_column_b;
            per_column_h = q > per_column_h ? q : per_column_h;
        }
    }
    long rows = (sweeps + 1) * n, columns = (sweeps + 1) * m;
    real top_a = NAME(largest)(A + n, NULL, sweeps * n), top_b = NAME(largest)(B, NULL, columns),
         top_h = NAME(largest)(H, NULL, columns);
    real low_p = NAME(smallest)(RP, rows), low_m = NAME(smallest)(RM, rows);
    double low = INFINITY;
    for (long i = 0; i < rows; i++) {
        double sum = (double)RP[i] * RM[i];
        if (!(sum >= low)) low = sum;
    }
    double lost = (double)top_b * top_h / low;            /* of r⁺ r⁻ */
    lost = MAXIMUM(lost, (double)per_column_b * heavy_b); /* of E⁺ᵀ (a ∘ r⁻) */
    lost = MAXIMUM(lost, (double)per_column_h * heavy_h); /* of E⁻ᵀ (a ∘ r⁺) */
    lost = MAXIMUM(lost, (double)top_a * top_b * top_h * eps);
    if (!(NAME(smallest)(A + n, sweeps * n) >= 0 && NAME(smallest)(B, columns) >= 0 &&
          NAME(smallest)(H, columns) >= 0 && low_p > 0 && low_m > 0))
        lost = INFINITY; /* a NaN anywhere ends here too */
    out[0] = cancelled;
    out[1] = lost;
}

/* A whole solution: masses, exclusions and start from the tops of the balanced kernels (see
 * `balance`; attract first, then repel), sweeps, and potentials. Returns the number of sweeps, or −1
 * where they lost too much; the first `start` of them may have been done before. `masses` receives the
 * marginals and their inverses (0 for no mass). */
static long NAME(triplet_solve)(long n, long m, int within, long start, long n_iters, double tol,
                                double sharpness, double eps, double cancellation, double limit,
                                const real *kernels, const real *tops, const double *marginals,
                                real *masses, real *row, real *column, real *A, real *B, real *H,
                                real *RP, real *RM, double *potentials, real *work) {
    const long size = n + 2 * m;
    const real *attract = kernels, *repel = kernels + n * m;
    const real *rows_p = tops, *columns_p = tops + n, *rows_m = tops + n + m,
               *columns_m = tops + 2 * n + m;
    real *inverse = masses + size;
    for (long i = 0; i < size; i++) {
        masses[i] = (real)marginals[i];
        inverse[i] = masses[i] > 0 ? 1 / masses[i] : 0;
    }
    double *shift_a = potentials, *shift_b = potentials + n, *shift_h = potentials + n + m;
    double top = -INFINITY;
    for (long j = 0; j < m; j++) {
        shift_b[j] = -sharpness * columns_p[j];
        shift_h[j] = -sharpness * columns_m[j];
        B[j] = (real)exp(-shift_b[j]);
        H[j] = (real)exp(-shift_h[j]);
        top = MAXIMUM(top, shift_b[j] + shift_h[j]);
    }
    for (long i = 0; i < n; i++) {
        shift_a[i] = -sharpness * ((double)rows_p[i] + rows_m[i]);
        row[i] = (real)exp(shift_a[i] + top);
        A[i] = masses[i];
    }
    for (long j = 0; j < m; j++) column[j] = (real)exp(shift_b[j] + shift_h[j] - top);
    long done = start;
    /* What loses too much mostly does so in the first sweep. */
    for (long end = start ? n_iters : 1;; end = n_iters) {
        done = NAME(triplet_sweeps)(n, m, within, done, end, tol, attract, repel, row, column, masses,
                                    masses + n, masses + n + m, A, B, H, RP, RM, work);
        double lost[2];
        NAME(triplet_losses)(n, m, done, eps, row, column, inverse, inverse + n, inverse + n + m, A, B,
                             H, RP, RM, lost);
        if (!(lost[0] <= cancellation && lost[1] <= limit)) return -1;
        if (done < end || end == n_iters) break;
    }
    for (long i = 0; i < n; i++) shift_a[i] += log((double)A[done * n + i]);
    for (long j = 0; j < m; j++) {
        shift_b[j] += log((double)B[done * m + j]);
        shift_h[j] += log((double)H[done * m + j]);
    }
    return done;
}

/* The adjoint of `sweeps` sweeps (§4, unrolled), four products each: see ScaledTripletHistory.adjoint,
 * whose names these are. ∂L/∂E⁺ = Σ_t to_b_t b_tᵀ + own_p_t wb_tᵀ: LP receives to_b_t in its first
 * sweeps + 1 slots (zero before the call), then own_p_t, and WB the right factors; LM and WH the same of
 * E⁻ and h. */
static long NAME(triplet_adjoint)(long n, long m, int within, long sweeps, const real *attract,
                                  const real *repel, const real *row, const real *column,
                                  const real *per_a, const real *per_b, const real *per_h,
                                  const real *A, const real *B, const real *H, const real *RP,
                                  const real *RM, real *grad_a, real *grad_b, real *grad_h,
                                  real *LP, real *WB, real *LM, real *WH, real *work) {
    real *sums = work, *received = work + n;
    for (long t = sweeps; t > 0; t--) {
        const real *a = A + t * n, *b = B + t * m, *h = H + t * m, *h0 = h - m, *b0 = b - m;
        const real *rp = RP + t * n, *rp0 = rp - n, *rm0 = RM + (t - 1) * n;
        real *wb = WB + (t - 1) * m, *wh = WH + (t - 1) * m;
        real *to_b = LP + t * n, *to_b0 = to_b - n, *to_h0 = LM + (t - 1) * n;
        real *own_p = LP + (sweeps + t) * n, *own_m = LM + (sweeps + t) * n;
        double total_a = NAME(dot)(row, a, n);

        /* Marginal 3 set h: −∂L/∂log h ∘ h / p³, through P¹³ to a and through P²³ to b. */
        for (long k = 0; k < m; k++) wh[k] = -h[k] * grad_h[k] * per_h[k];
        NAME(rows)(repel, wh, sums, n, m);
        double total = NAME(dot3)(column, b, wh, m);
        for (long i = 0; i < n; i++) {
            real outside = NAME(outside)(total, within ? column[i] * b[i] * wh[i] : 0, within);
            own_m[i] = a[i] * rp[i];
            to_b[i] += a[i] * sums[i];
            grad_a[i] += own_m[i] * sums[i] - row[i] * a[i] * outside;
        }
        NAME(columns)(attract, to_b, received, n, m);
        for (long j = 0; j < m; j++) {
            real outside = NAME(outside)(total_a, within ? row[j] * a[j] : 0, within);
            grad_b[j] += b[j] * (received[j] - wh[j] * column[j] * outside);
            /* Marginal 2 set b: −∂L/∂log b ∘ b / p², through P¹² to a and through P²³ to h₀. */
            wb[j] = -b[j] * grad_b[j] * per_b[j];
        }
        NAME(rows)(attract, wb, sums, n, m);
        total = NAME(dot3)(column, h0, wb, m);
        double total_w = 0;
        for (long i = 0; i < n; i++) {
            real outside = NAME(outside)(total, within ? column[i] * h0[i] * wb[i] : 0, within);
            own_p[i] = a[i] * rm0[i];
            real gradient = grad_a[i] + own_p[i] * sums[i] - row[i] * a[i] * outside;
            /* Marginal 1 set a: −∂L/∂log a ∘ a / p¹, through P¹² to b₀ and through P¹³ to h₀. */
            real weight = -a[i] * gradient * per_a[i];
            to_b0[i] = weight * rm0[i];
            to_h0[i] = a[i] * sums[i] + weight * rp0[i];
            grad_a[i] = row[i] * weight; /* kept for the exclusions below */
            total_w += grad_a[i];
        }
        if (t == 1) break; /* nothing depends on the start */
        NAME(columns)(repel, to_h0, received, n, m);
        for (long j = 0; j < m; j++) {
            real outside = column[j] * NAME(outside)(total_w, within ? grad_a[j] : 0, within);
            real to_all = NAME(outside)(total_a, within ? row[j] * a[j] : 0, within);
            grad_h[j] = h0[j] * (received[j] - wb[j] * column[j] * to_all - b0[j] * outside);
            /* What goes through to_b0 is added by the next sweep. */
            grad_b[j] = -b0[j] * h0[j] * outside;
        }
        memset(grad_a, 0, n * sizeof(real));
    }
    return 0;
}

/* Pairwise sweeps (§5) from the one after `start` on: rows, u = p¹ / E v, then columns, v = p² / Eᵀ u. */
static long NAME(pair_sweeps)(long n, long m, long start, long n_iters, double tol, const real *kernel,
                              const real *mass_u, const real *mass_v, real *U, real *V, real *R,
                              real *work) {
    long t = start;
    for (; t < n_iters; t++) {
        real *u = U + (t + 1) * n, *v = V + t * m, *r = R + t * n;
        NAME(rows)(kernel, v, r, n, m);
        if (tol >= 0 && t > 0 && NAME(distance)(u - n, r, mass_u, n) <= tol) break;
        for (long i = 0; i < n; i++) u[i] = mass_u[i] / r[i];
        NAME(columns)(kernel, u, work, n, m);
        for (long j = 0; j < m; j++) v[m + j] = mass_v[j] / work[j];
    }
    return t;
}

/* Their adjoint: see ScaledPairHistory.adjoint. */
static long NAME(pair_adjoint)(long n, long m, long sweeps, const real *kernel, const real *per_u,
                               const real *per_v, const real *U, const real *V, real *grad_u,
                               real *grad_v, real *left, real *right, real *work) {
    for (long t = sweeps; t > 0; t--) {
        const real *u = U + t * n, *v = V + t * m, *v0 = v - m;
        real *l1 = left + (2 * t - 1) * n, *r1 = right + (2 * t - 1) * m;
        real *l0 = l1 - n, *r0 = r1 - m;
        /* Columns set v: −∂L/∂log v ∘ v / p², through the plan to u. */
        for (long j = 0; j < m; j++) r1[j] = -v[j] * grad_v[j] * per_v[j];
        NAME(rows)(kernel, r1, work, n, m);
        /* Rows set u: through the plan to v of the sweep before. */
        for (long i = 0; i < n; i++) {
            l1[i] = u[i];
            l0[i] = -u[i] * (grad_u[i] + u[i] * work[i]) * per_u[i];
            grad_u[i] = 0;
        }
        NAME(columns)(kernel, l0, work, n, m);
        for (long j = 0; j < m; j++) r0[j] = v0[j], grad_v[j] = v0[j] * work[j];
    }
    return 0;
}
