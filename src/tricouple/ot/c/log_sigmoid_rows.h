/* Sweeps and products by rows of the log-sigmoid kernel: at every node of a row's list a softmax of positives and one
 * of negatives, their largest terms apart (primitive.h). Always right, about ten times the fast passes
 * (log_sigmoid.h, which says what the rule and the lists are). Without these two functions PyTorch does the same. */
/* Rates e^{x + v} of a node, and the exponents of its terms, log A + f and log B + g, without the part of A that
 * is m·x. */
INLINE void NAME(at_node)(long m, const double *rule, double v, const real *s, const double *f, const double *g,
                          real *rate, double *near, double *far) {
    const double factor = rule[FACTOR], level = rule[CONSTANT] + rule[POWER] * v, most = rule[MOST];
#pragma omp simd
    for (long j = 0; j < m; j++) {
        const double x = factor * s[j] + v;
        rate[j] = NAME(exponential)((real)(x < most ? x : most));
        near[j] = f[j] + level - rate[j];
        far[j] = g[j] - rate[j];
    }
}

/* Whether all potentials are numbers, −∞ included. */
static int NAME(numbers)(long m, const double *f, const double *g) {
    for (long j = 0; j < m; j++)
        if (f[j] != f[j] || g[j] != g[j]) return 0;
    return 1;
}

/* `soft`, compiled once. */
FAST static void NAME(soft_at)(long m, long own, double c, const real *s, const double *v, real *R,
                               NAME(soft_row) *out) {
    *out = NAME(soft)(m, own, c, s, v, R);
}

/* `update` of primitive.h with nodes: sets φ if masses are given (marginal 1), and adds up the columns of
 * positives (sign 1, marginal 2) or of negatives (−1, marginal 3): log Σ_i e^φ Σ_q A_q(x_ij) Σ_{k≠j} B_q e^g.
 * A thread's work: 3m + 3·width doubles, m + 2·width·m reals. */
FAST long NAME(term_update)(long n, long m, long width, long sign, long threads, const double *rule, const real *S,
                            const int64_t *own, const int64_t *counts, const int32_t *lists, double *phi,
                            const double *f, const double *g, const double *log_mass, double *marginal, double *peak,
                            double *sums, double *wide, real *work) {
    const double c = rule[POWER] * rule[FACTOR], mine = sign > 0 ? c : 0, other = sign > 0 ? 0 : c;
    const int numbers = NAME(numbers)(m, f, g);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num();
        double *high = peak + me * m, *total = sums + me * m, *near = wide + me * 3 * (m + width), *far = near + m;
        double *top = far + m, *weight = top + m, *rest = weight + width, *at = rest + width;
        real *P = work + me * (1 + 2 * width) * m, *rates = P + m, *shares = rates + width * m;
#pragma omp for schedule(static)
        for (long i = 0; i < n; i++) {
            const real *s = S + i * m;
            const long o = own[i], count = numbers ? counts[i] : -1;
            double all = count < 0 ? NAN : -INFINITY;
            for (long k = 0; k < count; k++) {
                const double v = rule[STEP] * lists[i * width + k];
                real *rate = rates + k * m, *share = shares + k * m;
                NAME(at_node)(m, rule, v, s, f, g, rate, near, far);
                NAME(soft_row) p, q;
                NAME(soft_at)(m, o, other, s, sign > 0 ? far : near, share, &q);
                if (log_mass) {
                    NAME(soft_at)(m, o, c, s, near, P, &p);
                    all = log_add(all, p.total + q.total + NAME(log_distinct)(m, p, q, P, share));
                }
                weight[k] = q.total + (sign > 0 ? rule[CONSTANT] + rule[POWER] * v : 0);
                rest[k] = q.log_rest, at[k] = q.at;
                const real r = (real)exp(q.log_rest);
#pragma omp simd
                for (long j = 0; j < m; j++) share[j] = 1 - r * share[j]; /* of all but j */
            }
            if (log_mass) {
                marginal[i] = phi[i] + all;
                phi[i] = log_mass[i] > -INFINITY ? log_mass[i] - all : -INFINITY;
            }
            if (!(phi[i] > -INFINITY) && !(count < 0)) continue;
            memcpy(top, high, m * sizeof(double));
            const double a = phi[i];
            for (long k = 0; k < count; k++) {
                const real *rate = rates + k * m;
                const double w = a + weight[k];
                const long z = (long)at[k];
                const double before = z >= 0 ? top[z] : 0;
#pragma omp simd
                for (long j = 0; j < m; j++) {
                    const double x = w + mine * s[j] - rate[j];
                    top[j] = x > top[j] ? x : top[j];
                }
                if (z < 0) continue;
                const double x = w + mine * s[z] - rate[z] + rest[k]; /* there it is the rest itself */
                top[z] = x > before ? x : before;
            }
            if (o >= 0) top[o] = high[o];
#pragma omp simd
            for (long j = 0; j < m; j++) {
                const double fall = high[j] - top[j];
                total[j] *= fall < 0 ? NAME(exponential)((real)fall) : 1;
                high[j] = top[j];
                P[j] = 0;
            }
            for (long k = 0; k < count; k++) {
                const real *rate = rates + k * m, *share = shares + k * m;
                const double w = a + weight[k];
                const long z = (long)at[k];
                const real before = z >= 0 ? P[z] : 0;
#pragma omp simd
                for (long j = 0; j < m; j++)
                    P[j] += NAME(exponential)((real)(w + mine * s[j] - rate[j] - high[j])) * share[j];
                if (z >= 0) P[z] = before + (real)exp(w + mine * s[z] - rate[z] + rest[k] - high[z]);
            }
            if (o >= 0) P[o] = 0;
            for (long j = 0; j < m; j++) total[j] += count < 0 ? NAN : P[j];
        }
    }
    return 0;
}

/* `push` of primitive.h with nodes; slopes m − e^{x+v} of A and −e^{x+v} of B for the gradient with respect to s.
 * A thread's work: 3m doubles, 7m reals. */
FAST long NAME(term_push)(long n, long m, long width, long threads, const double *rule, const real *S,
                          const int64_t *own, const int64_t *counts, const int32_t *lists, const double *phi,
                          const double *f, const double *g, const double *w0, const double *w1, const double *w2,
                          double *out0, double *out1, double *out2, real *G, double *wide, real *work) {
    const double c = rule[POWER] * rule[FACTOR];
    const int numbers = NAME(numbers)(m, f, g);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num();
        double *near = wide + me * 3 * m, *far = near + m, *force = far + m, *sum1 = out1 + me * m, *sum2 = out2 + me * m;
        real *P = work + me * 7 * m, *Q = P + m, *v1 = Q + m, *v2 = v1 + m, *o1 = v2 + m, *o2 = o1 + m, *rate = o2 + m;
        for (long j = 0; j < m; j++) v1[j] = w1 ? (real)w1[j] : 0, v2[j] = w2 ? (real)w2[j] : 0;
#pragma omp for schedule(static)
        for (long i = 0; i < n; i++) {
            const real *s = S + i * m;
            const double w = w0 ? w0[i] : 0;
            const long count = numbers ? counts[i] : -1;
            double sum = count < 0 ? NAN : 0;
            for (long j = 0; j < m; j++) force[j] = sum, o1[j] = o2[j] = (real)sum;
            for (long node = 0; node < count; node++) {
                NAME(at_node)(m, rule, rule[STEP] * lists[i * width + node], s, f, g, rate, near, far);
                NAME(soft_row) p, q;
                NAME(soft_at)(m, own[i], c, s, near, P, &p);
                NAME(soft_at)(m, own[i], 0, s, far, Q, &q);
                const double log_a = phi[i] + p.total + q.total;
                if (p.at < 0 || q.at < 0 || log_a < -745) continue;
                const double A = exp(log_a < 700 ? log_a : 700), rest_p = exp(p.log_rest), rest_q = exp(q.log_rest);
                const double A_p = exp(log_a + p.log_rest), A_q = exp(log_a + q.log_rest); /* A·rest⁺, A·rest⁻ */
                const long same = p.at == q.at, at[2] = {p.at, q.at};
                const double top_p = exp(p.log_top), top_q = exp(q.log_top);
                const double q_at = same ? top_q : rest_q * Q[p.at], p_at = same ? top_p : rest_p * P[q.at];
                double mean_p = 0, mean_q = 0; /* of the rests */
                for (long start = 0; start < m; start += NAME(CHUNK)) {
                    const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
                    real a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
                    for (long j = start; j < end; j++) a += P[j] * v1[j], b += Q[j] * v2[j];
                    mean_p += a, mean_q += b;
                }
                const double W_p = rest_p * mean_p + top_p * v1[p.at], W_q = rest_q * mean_q + top_q * v2[q.at];
                Q[p.at] = P[q.at] = 0; /* the special columns leave the loops */
                const real a_p = (real)A_p, a_q = (real)A_q, r_p = (real)rest_p, r_q = (real)rest_q;
                const real w_ = (real)w, Wp = (real)W_p, Wq = (real)W_q, power = (real)rule[POWER];
                for (long start = 0; start < m; start += NAME(CHUNK)) {
                    const long end = start + NAME(CHUNK) < m ? start + NAME(CHUNK) : m;
                    real few = 0;
#pragma omp simd reduction(+ : few)
                    for (long j = start; j < end; j++) {
                        const real p_ = r_p * P[j], q_ = r_q * Q[j];
                        const real P12 = a_p * P[j] * (1 - q_), P13 = a_q * Q[j] * (1 - p_);
                        const real to1 = P12 * w_ + a_p * P[j] * (Wq - q_ * v2[j]);
                        const real to2 = P13 * w_ + a_q * Q[j] * (Wp - p_ * v1[j]);
                        few += P12 * v1[j] + P13 * v2[j];
                        o1[j] += to1, o2[j] += to2;
                        force[j] += (to1 + P12 * v1[j]) * (power - rate[j]) - (to2 + P13 * v2[j]) * rate[j];
                    }
                    sum += few;
                }
                for (int z = 0; z < (same ? 1 : 2); z++) {
                    const long j = at[z];
                    const double p_ = z == 0 ? top_p : p_at, q_ = z == 0 ? q_at : top_q, x1 = v1[j], x2 = v2[j];
                    const double P12 = j == q.at ? A_q * p_ : A * p_ * (1 - q_), P13 = j == p.at ? A_p * q_ : A * q_ * (1 - p_);
                    const double to1 = P12 * w + (j == q.at ? A_q * p_ * mean_q : A * p_ * (W_q - q_ * x2));
                    const double to2 = P13 * w + (j == p.at ? A_p * q_ * mean_p : A * q_ * (W_p - p_ * x1));
                    sum += P12 * x1 + P13 * x2;
                    sum1[j] += to1, sum2[j] += to2;
                    force[j] += (to1 + P12 * x1) * (rule[POWER] - rate[j]) - (to2 + P13 * x2) * rate[j];
                }
            }
            out0[i] = sum;
            for (long j = 0; j < m; j++) sum1[j] += o1[j], sum2[j] += o2[j];
            if (G)
                for (long j = 0; j < m; j++) G[i * m + j] += (real)(force[j] * rule[FACTOR]);
        }
    }
    return 0;
}
