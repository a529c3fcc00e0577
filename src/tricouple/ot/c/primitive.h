/* The primitive: rows.py in C, call for call, with its formulas and names (mathematics §2).
 *
 * A row's weights exp(c s_j + v_j), j ≠ own, are split: softmax_j = top for the largest, j*, and rest · R_j for
 * the others, top + rest = 1, Σ R = 1. */
typedef struct {
    long at;                         /* j* */
    double total, log_top, log_rest; /* log Σ_j exp(c s_j + v_j), and of the two shares */
} NAME(soft_row);

enum { NAME(CHUNK) = 128, NAME(BLOCK) = 16 };

/* exp(x) for x ≤ 0 or so; 0 where that would be below the smallest normal number. */
INLINE real NAME(exponential)(real x) {
    const real low = x < EXP_LOW ? EXP_LOW : x;
    const real shifted = low * (real)1.4426950408889634 + SHIFT, k = shifted - SHIFT;
    const real rest = (low - k * LN2_HIGH) - k * LN2_LOW;
    real sum = (real)SERIES[DEGREE];
    for (int i = DEGREE - 1; i >= 0; i--) sum = sum * rest + (real)SERIES[i];
    bits word;
    memcpy(&word, &shifted, sizeof word);
    word = (word + BIAS) << MANTISSA;
    real power;
    memcpy(&power, &word, sizeof power);
    return x < EXP_LOW ? 0 : sum * power;
}

/* Where c s_j + v_j is largest, j ≠ own and j ≠ but. */
INLINE long NAME(largest)(long m, long own, long but, double c, const real *s, const double *v) {
    double high = -INFINITY;
    long at = -1;
    for (long start = 0; start < m; start += NAME(CHUNK)) {
        const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
        double few = -INFINITY;
#pragma omp simd reduction(max : few)
        for (long j = start; j < end; j++) {
            const double x = c * s[j] + v[j];
            few = x > few ? x : few;
        }
        if (!(few > high)) continue;
        for (long j = start; j < end; j++) {
            const double x = c * s[j] + v[j];
            if (j != own && j != but && x > high) high = x, at = j;
        }
    }
    return at;
}

/* Σ_j R_j, R_j = exp(c s_j + v_j − scale), without two columns. */
INLINE double NAME(fill)(long m, long own, long but, double c, const real *s, const double *v,
                         double scale, real *R) {
    double sum = 0;
    for (long start = 0; start < m; start += NAME(CHUNK)) {
        const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
        real part = 0;
#pragma omp simd
        for (long j = start; j < end; j++) {
            const real x = (real)(c * s[j] + v[j] - scale);
            R[j] = NAME(exponential)(x < 1 ? x : 1);
        }
        if (own >= start && own < end) R[own] = 0;
        if (but >= start && but < end) R[but] = 0;
#pragma omp simd reduction(+ : part)
        for (long j = start; j < end; j++) part += R[j];
        sum += part;
    }
    return sum;
}

INLINE NAME(soft_row) NAME(soft)(long m, long own, double c, const real *s, const double *v, real *R) {
    const long at = NAME(largest)(m, own, -1, c, s, v);
    if (at < 0) { /* a row without mass */
        memset(R, 0, m * sizeof(real));
        return (NAME(soft_row)){-1, -INFINITY, -INFINITY, -INFINITY};
    }
    const double high = c * s[at] + v[at];
    double scale = high, sum = NAME(fill)(m, own, at, c, s, v, scale, R);
    if (sum < 1e-15) { /* the rest on its own scale */
        const long second = NAME(largest)(m, own, at, c, s, v);
        if (second >= 0) scale = c * s[second] + v[second], sum = NAME(fill)(m, own, at, c, s, v, scale, R);
    }
    const double rest = sum > 0 ? scale + log(sum) : -INFINITY, total = log_add(high, rest);
    const real inverse = sum > 0 ? (real)(1 / sum) : 0;
#pragma omp simd
    for (long j = 0; j < m; j++) R[j] *= inverse;
    return (NAME(soft_row)){at, total, high - total, rest - total};
}

/* Σ_j x_j y_j. */
INLINE double NAME(dot)(long m, const real *x, const real *y) {
    double sum = 0;
    for (long start = 0; start < m; start += NAME(CHUNK)) {
        const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
        real part = 0;
#pragma omp simd reduction(+ : part)
        for (long j = start; j < end; j++) part += x[j] * y[j];
        sum += part;
    }
    return sum;
}

/* log(1 − Σ_j p_j q_j): that a positive and a negative, drawn apart, are not the same sample. */
INLINE double NAME(log_distinct)(long m, NAME(soft_row) p, NAME(soft_row) q, const real *P, const real *Q) {
    if (p.at < 0 || q.at < 0) return -INFINITY;
    const double rest_p = exp(p.log_rest), rest_q = exp(q.log_rest), meet = NAME(dot)(m, P, Q);
    if (p.at == q.at) /* both rests apart, or one of them with the other's top */
        return log_add(p.log_rest + log1p(-rest_q * meet), p.log_top + q.log_rest);
    const double here = rest_q * Q[p.at], there = rest_p * P[q.at]; /* q at p's top, p at q's top */
    return log(exp(p.log_top) * (1 - here) + there * rest_q + rest_p - there - rest_p * rest_q * meet);
}

/* A pass of a sweep over some rows: sets φ, if asked to, and adds up the columns for what comes next. Partner
 * NULL: pairs. `marginal` receives the logarithms of the plan's masses before φ is set. A column is
 * exp(peak_j) sum_j, one row of each a thread; `top`: a row of doubles a thread, `work`: 2 + BLOCK rows of reals. */
FAST long NAME(update)(long n, long m, double c, const real *S, const int64_t *own, double *phi,
                       const double *v, const double *partner, const double *log_mass, double *marginal,
                       double *peak, double *sum, double *top_, real *work, long threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num();
        double *high = peak + me * m, *total = sum + me * m, *top = top_ + me * m;
        real *P = work + me * (2 + NAME(BLOCK)) * m, *add = P + m, *shares = add + m;
#pragma omp for schedule(static)
        for (long block = 0; block < (n + NAME(BLOCK) - 1) / NAME(BLOCK); block++) {
            const long first = block * NAME(BLOCK), end = first + NAME(BLOCK) < n ? first + NAME(BLOCK) : n;
            double weight[NAME(BLOCK)], apart[NAME(BLOCK)];
            long at[NAME(BLOCK)];
            memcpy(top, high, m * sizeof(double));
            for (long i = first; i < end; i++) {
                const real *s = S + i * m;
                const long o = own[i];
                real *share = shares + (i - first) * m;
                NAME(soft_row) q = {-1, 0, 0, -INFINITY};
                if (partner) q = NAME(soft)(m, o, -c, s, partner, share);
                if (log_mass) { /* marginal 1 */
                    const NAME(soft_row) p = NAME(soft)(m, o, c, s, v, P);
                    const double sums = p.total + (partner ? q.total + NAME(log_distinct)(m, p, q, P, share) : 0);
                    marginal[i] = phi[i] + sums;
                    phi[i] = log_mass[i] > -INFINITY ? log_mass[i] - sums : -INFINITY;
                }
                const double w = phi[i] + q.total; /* log(a r⁻) */
                const long a = q.at;
                weight[i - first] = w, at[i - first] = a;
                if (!(w > -INFINITY)) continue;
                const double here = a >= 0 ? top[a] : 0, self = o >= 0 ? top[o] : 0;
                const real rest = (real)exp(q.log_rest);
                if (partner)
#pragma omp simd
                    for (long j = 0; j < m; j++) share[j] = 1 - rest * share[j]; /* of all k ≠ j in r⁻ */
#pragma omp simd
                for (long j = 0; j < m; j++) {
                    const double x = w + c * s[j];
                    top[j] = x > top[j] ? x : top[j];
                }
                if (a >= 0) { /* in column k* it is the rest itself */
                    const double x = apart[i - first] = w + q.log_rest + c * s[a];
                    top[a] = x > here ? x : here;
                }
                if (o >= 0) top[o] = self;
            }
#pragma omp simd
            for (long j = 0; j < m; j++) {
                const double fall = high[j] - top[j];
                total[j] *= fall > -700 ? exp(fall) : 0;
                high[j] = top[j];
                add[j] = 0;
            }
            for (long i = first; i < end; i++) {
                const real *s = S + i * m, *share = shares + (i - first) * m;
                const double w = weight[i - first];
                const long a = at[i - first], o = own[i];
                if (!(w > -INFINITY)) continue;
                const real here = a >= 0 ? add[a] : 0, self = o >= 0 ? add[o] : 0;
                if (partner)
#pragma omp simd
                    for (long j = 0; j < m; j++)
                        add[j] += NAME(exponential)((real)(w + c * s[j] - high[j])) * share[j];
                else
#pragma omp simd
                    for (long j = 0; j < m; j++) add[j] += NAME(exponential)((real)(w + c * s[j] - high[j]));
                if (a >= 0) add[a] = here + (real)exp(apart[i - first] - high[a]);
                if (o >= 0) add[o] = self;
            }
            for (long j = 0; j < m; j++) total[j] += add[j];
        }
    }
    return 0;
}

/* Weights w on the axes of a plan, carried through it (§4: J w without its diagonal), and c times the derivative
 * of Σ w · marginals with respect to c s_ij, added to G. What j = k takes is equal in both of its halves:
 *
 *   G_ij += c A p_j (w⁰_i + w¹_j + W⁻) − c A q_j (w⁰_i + w²_j + W⁺)
 *
 * The largest terms j* of p and k* of q are done apart, exactly. Pairs: g NULL, q = 0. */
FAST long NAME(push)(long n, long m, double c, const real *S, const int64_t *own, const double *phi,
                     const double *f, const double *g, const double *w0, const double *w1, const double *w2,
                     double *out0, double *out1, double *out2, real *G, real *work, long threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num();
        real *P = work + me * 6 * m, *Q = P + m, *v1 = Q + m, *v2 = v1 + m, *o1 = v2 + m, *o2 = o1 + m;
        double *sum1 = out1 + me * m, *sum2 = out2 + me * m;
        for (long j = 0; j < m; j++) {
            v1[j] = w1 ? (real)w1[j] : 0, v2[j] = w2 ? (real)w2[j] : 0;
            o1[j] = o2[j] = Q[j] = 0;
        }
        long since = 0;
#pragma omp for schedule(static)
        for (long i = 0; i < n; i++) {
            const real *s = S + i * m;
            const NAME(soft_row) p = NAME(soft)(m, own[i], c, s, f, P);
            NAME(soft_row) q = {-1, 0, -INFINITY, -INFINITY};
            if (g) q = NAME(soft)(m, own[i], -c, s, g, Q);
            const double log_a = phi[i] + p.total + q.total;
            out0[i] = 0;
            if (!(log_a > -INFINITY) || p.at < 0 || (g && q.at < 0)) continue;
            const double A = exp(log_a < 700 ? log_a : 700), w = w0 ? w0[i] : 0;
            const double A_p = exp(log_a + p.log_rest), A_q = exp(log_a + q.log_rest); /* A·rest⁺, A·rest⁻ */
            const double rest_p = exp(p.log_rest), rest_q = exp(q.log_rest);
            /* The special columns leave the loops. */
            const long at[2] = {p.at, q.at};
            const double q_at = p.at == q.at ? exp(q.log_top) : rest_q * Q[p.at];
            const double p_at = q.at < 0 ? 0 : p.at == q.at ? exp(p.log_top) : rest_p * P[q.at];
            const double mean_p = NAME(dot)(m, P, v1), mean_q = g ? NAME(dot)(m, Q, v2) : 0; /* of the rests */
            const double W_p = rest_p * mean_p + exp(p.log_top) * v1[p.at];
            const double W_q = q.at < 0 ? 0 : rest_q * mean_q + exp(q.log_top) * v2[q.at];
            Q[p.at] = 0;
            if (q.at >= 0) P[q.at] = 0;
            const real a_p = (real)A_p, a_q = (real)A_q, r_p = (real)rest_p, r_q = (real)rest_q;
            const real w_ = (real)w, Wp = (real)W_p, Wq = (real)W_q, k = (real)c;
            double sum = 0;
            for (long start = 0; start < m; start += NAME(CHUNK)) {
                const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
                real few = 0;
#pragma omp simd reduction(+ : few)
                for (long j = start; j < end; j++) {
                    const real Ap = a_p * P[j], Aq = a_q * Q[j], p_ = r_p * P[j], q_ = r_q * Q[j];
                    few += Ap * (1 - q_) * v1[j] + Aq * (1 - p_) * v2[j];
                    o1[j] += Ap * ((1 - q_) * w_ + Wq - q_ * v2[j]);
                    o2[j] += Aq * ((1 - p_) * w_ + Wp - p_ * v1[j]);
                }
                sum += few;
                if (G)
#pragma omp simd
                    for (long j = start; j < end; j++)
                        G[i * m + j] += k * (a_p * P[j] * (w_ + v1[j] + Wq) - a_q * Q[j] * (w_ + v2[j] + Wp));
            }
            for (int z = 0; z < (p.at == q.at || q.at < 0 ? 1 : 2); z++) {
                const long j = at[z];
                const double p_ = z == 0 ? exp(p.log_top) : p_at, q_ = z == 0 ? q_at : exp(q.log_top);
                const double x1 = v1[j], x2 = v2[j];
                const double near = j == q.at ? A_q * p_ : A * p_ * (1 - q_); /* P¹²_ij */
                const double far = j == p.at ? A_p * q_ : A * q_ * (1 - p_);  /* P¹³_ij */
                const double to1 = j == q.at ? A_q * p_ * mean_q : A * p_ * (W_q - q_ * x2);
                const double to2 = j == p.at ? A_p * q_ * mean_p : A * q_ * (W_p - p_ * x1);
                sum += near * x1 + far * x2;
                sum1[j] += near * w + to1;
                sum2[j] += far * w + to2;
                if (G) G[i * m + j] += (real)(c * (near * (w + x1) + to1 - far * (w + x2) - to2));
            }
            out0[i] = sum;
            if (++since == NAME(BLOCK)) {
                since = 0;
                for (long j = 0; j < m; j++) sum1[j] += o1[j], sum2[j] += o2[j], o1[j] = o2[j] = 0;
            }
        }
        for (long j = 0; j < m; j++) sum1[j] += o1[j], sum2[j] += o2[j];
    }
    return 0;
}
