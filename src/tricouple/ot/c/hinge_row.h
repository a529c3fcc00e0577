/* A row of a hinge (mathematics §9), for `number`: double, or wide where exponents exceed a double. Included by
 * hinge.h with KIND(name), TIMES, PLUS, EXP, LOG, ZERO, OF (from a double) and DOUBLE (to a double). */

/* For the entries r of a sorted row, v = values:
 *     whole_r = out_flat_r Σ_{k < bound_r} in_flat_k v_k + e^{−γ} out_r Σ_{k ≥ bound_r, k ≠ r} in_k v_k,
 * and fall_r, its derivative by t: the second part plus δ times the whole. Bounds rise and do not exceed r; with `down`
 * both ends of the row are exchanged. Steep factors come first in `in` and `out`, flat ones after `room` of them.
 * Nothing is subtracted: Σ_{k ≥ bound_r, k ≠ r} is all behind r and the window [bound_r, r), which is the sum from its
 * start to a pivot and from there to its end. The first pivot is 0, the next one the first r whose window has left it.
 * Returns Σ_r weights_r whole_r. */
INLINE number KIND(half)(int down, const hinge_form *p, long length, const uint32_t *bound, const number *in,
                         const number *values, const number *out, const number *weights, number *whole, number *fall,
                         number *work) {
    const long room = p->room, last = length - 1;
    const number gap = EXP(-p->gap), slope = OF(p->slope);
    number *flats = work, *steeps = flats + room, *back = steeps + room, front = ZERO, sum = ZERO, rest = ZERO, all = ZERO;
    uint32_t *pivots = (uint32_t *)(back + room);
    long pivot = 0, pivots_n = 0;
    for (long r = 0; r < length; r++)
        steeps[r] = TIMES(in[r], values[r]), flats[r] = TIMES(in[room + r], values[r]);
    for (long k = 0; k < length; k++) { /* flats: sums of what is before; whole: from the pivot on */
        const long r = down ? last - k : k;
        if (k == 0 || (down ? bound[r] < pivot : bound[r] > pivot))
            pivot = r, pivots[pivots_n++] = (uint32_t)r, front = ZERO;
        const number flat = flats[r];
        flats[r] = sum, sum = PLUS(sum, flat);
        whole[r] = front, front = PLUS(front, steeps[r]);
    }
    sum = ZERO;
    for (long k = last; k >= 0; k--) { /* back: sums from here to the next pivot */
        const long r = down ? last - k : k;
        whole[r] = PLUS(whole[r], sum), sum = PLUS(sum, steeps[r]);
        back[r] = rest = PLUS(rest, steeps[r]);
        if (r == pivots[pivots_n - 1]) back[r] = rest = ZERO, pivots_n--;
    }
    for (long r = 0; r < length; r++) {
        const number falls = TIMES(gap, TIMES(out[r], PLUS(whole[r], back[bound[r]])));
        whole[r] = PLUS(TIMES(out[room + r], flats[bound[r]]), falls);
        fall[r] = PLUS(falls, TIMES(slope, whole[r])), all = PLUS(all, TIMES(weights[r], whole[r]));
    }
    return all;
}

/* A row: `up` and `down` are e^{(1+δ)x} and e^{−(1+δ)x}, then the same of δx. Sums go to `p->sums`, to_f and to_g (by
 * column), ∂T/∂x to `forces` (by rank); those that are NULL are not wanted. Returns 0, with nothing done, if the
 * exponent of the sum has no room in a double. `work`: 9 rooms. */
INLINE int KIND(row)(const hinge_form *p, long i, const number *F, const number *G, const number *up, const number *down,
                    number *to_f, number *to_g, double *forces, number *work) {
    const long room = p->room, length = p->own[i] < 0 ? p->m : p->m - 1;
    const uint32_t *column = p->column + i * p->m, *low = p->low + i * p->m;
    number *f = work, *g = f + room, *whole = g + room, *fall = whole + room, *spare = fall + room;
    uint32_t *high = (uint32_t *)(spare + 4 * room);
    number A = p->log_mass ? ZERO : TIMES(EXP(p->phi[i] + p->mids), OF(p->weight ? p->weight[i] : 1));
    for (long r = 0; r < length; r++) f[r] = F[column[r]], g[r] = G[column[r]];
    if (to_f || forces || p->sums) {
        const number sum = KIND(half)(0, p, length, low, down, g, up, f, whole, fall, spare);
        if (p->log_mass) {
            const double log_sum = LOG(sum);
            if (sizeof(number) == sizeof(double) && !(fabs(log_sum) < 660)) return 0;
            p->sums[i] = log_sum + p->mids;
            if (p->log_mass[i] > -INFINITY) A = EXP(p->log_mass[i] - log_sum);
        } else if (p->sums)
            p->sums[i] = DOUBLE(TIMES(A, sum));
        for (long r = 0; to_f && r < length; r++) to_f[column[r]] = PLUS(to_f[column[r]], TIMES(A, whole[r]));
        for (long r = 0; forces && r < length; r++) forces[r] = DOUBLE(TIMES(A, TIMES(f[r], fall[r])));
    }
    if (!to_g && !forces) return 1;
    last_positives(length, low, high);
    KIND(half)(1, p, length, high, up, f, down, g, whole, fall, spare);
    for (long r = 0; to_g && r < length; r++) to_g[column[r]] = PLUS(to_g[column[r]], TIMES(A, whole[r]));
    for (long r = 0; forces && r < length; r++) forces[r] -= DOUBLE(TIMES(A, TIMES(g[r], fall[r])));
    return 1;
}
#undef number
#undef KIND
#undef TIMES
#undef PLUS
#undef EXP
#undef LOG
#undef ZERO
#undef OF
#undef DOUBLE
