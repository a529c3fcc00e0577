"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Group
from tricouple.losses.base import ContrastiveLoss, as_number
from tricouple.losses.batch import Batch
from tricouple.losses.costs import extreme_margins, mean_cost, mean_log_sigmoid_cost
from tricouple.memory import DEFAULT_BUDGET
from tricouple.numeric import expectation, inverse_product, on_host
from tricouple.ot.engine import (
    BothWays,
    HingeTriplets,
    LinearTriplets,
    LogSigmoidTriplets,
    Problem,
    ShapedTriplets,
    Sweeps,
    goes_both_ways,
)
from tricouple.ot.potentials import embedded_potentials, hinge_potentials
from tricouple.relations import ListedTriplets, TripletTarget
from tricouple.shaping import Hinge, Shaping, check_margins, resolve


class NegMMIOT(ContrastiveLoss):
    """Anchor, positive and negative in one coupling (paper: Neg-MMIOT-CL), in O(N²).

    ``KL(P̃ ‖ P)``, where P̃ is uniform on the admissible triplets and P is the entropic transport
    plan of three copies of the batch for the cost ``C_ijk = ψ((s_ij − s_ik)/τ)``.

    For ψ(t) = −t the loss depends on τ and ε only through the sharpness c = 1/(τε). Then the plan
    decouples: given its anchor, positive and negative are independent but for j ≠ k, and with
    balanced classes, two views or one-to-one captions the loss *is* ``PushPull`` with ε₊ = ε₋ = ε,
    up to the effect of that exclusion, O(1/N) (mathematics §8). With log-sigmoid, or any ψ that is
    not affine, it is not: those are truly three-way. That three-marginal transport with a
    tree-structured cost, as the star i–j, i–k of a linear ψ, takes O(N²) a sweep is known from
    Haasler, Singh, Zhang, Karlsson and Chen (2020) and from Altschuler and Boix-Adserà.

    Args:
        temperature: τ; a number, or a tensor or ``nn.Parameter`` that receives its gradient. If it
            is left out it follows from the sharpness.
        epsilon: ε, the entropic regularisation.
        n_iters: Sinkhorn sweeps, at most.
        tol: Stop sweeping when the marginal error (L1) is below this.
        shaping: ψ; ``"linear"`` is ψ(t) = −t, ``"log_sigmoid"`` is ψ(t) = log(1 + e^{−t}) and
            ``tricouple.shaping.Hinge(margin)`` is ψ(t) = max(0, margin − t), all fast; so is
            ``"hinge"``, which is max(0, 1 − t) − t/100. ``"exponential"``, ``"squared_hinge"`` and
            every callable (decreasing but for flat parts, differentiable, entry by entry) take
            O(N³) time, a few anchors at a time. docs/shaping.md says which does what.
        margin: With ``shaping="hinge"``: from where on triplets are satisfied, in units of t, and
            exert no force; the same as ``shaping=tricouple.shaping.Hinge(margin)``.
        gradient: ``"unrolled"`` (exact for the sweeps done), ``"implicit"`` (exact at convergence:
            give it enough ``n_iters`` and a ``tol``) or ``"envelope"`` (cheapest; exact at
            convergence in balanced batches).
        marginals: ``"uniform"`` as in the paper; ``"target"``: those of P̃, so that samples without
            a positive drop out; ``"classes"``: the same mass for every class, in P̃ as well, so that
            small classes count as much as large ones (mathematics §11).
        sharpness: c = 1/(τε) instead of a temperature; 10 if neither is given. ``"paper"`` is the
            paper's c = 100, which a training with SGD does not survive (docs/sharpness.md).
        empty: ``"raise"`` or ``"zero"`` for batches without an admissible triplet.
        check: ``"full"`` or ``"shapes"``, as in ``ContrastiveLoss`` (docs/accelerators.md).
        group: Processes whose samples are one batch, as in ``ContrastiveLoss``.
        memory: ``"matrices"`` stores N×N kernels, ``"streamed"`` recomputes tiles of them in every
            pass, in O(N·d) memory; ``"auto"`` streams what exceeds the budget.
        memory_budget: Bytes; for other ψ than the fast ones, those of the N³ costs: kept if all
            fit, else computed for a few anchors at a time.
        kernel_tol: Relative error of the log-sigmoid kernel, from which the number of terms of its
            quadrature follows: the loss is that of a ψ which differs from log-sigmoid by at most
            ``kernel_tol · ε``, and so is its gradient. A thousandth costs two thirds of the time of
            a millionth, the default of ``ot.triplet_sinkhorn``, where the plan itself is wanted.

    Example:
        >>> criterion = NegMMIOT(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    shown = ("temperature", "epsilon", "shaping", "sweeps")
    scale = "temperature"
    paper_sharpness = 100.0
    temperature: float | Tensor
    sweeps: Sweeps

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        epsilon: float = 0.1,
        n_iters: int = 10,
        tol: float | None = None,
        shaping: str | Shaping = "linear",
        gradient: str = "unrolled",
        marginals: str = "uniform",
        *,
        margin: float | None = None,
        sharpness: float | str | None = None,
        empty: str = "raise",
        check: str = "full",
        group: Group = None,
        memory: str = "auto",
        memory_budget: float = DEFAULT_BUDGET,
        kernel_tol: float = 1e-3,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        checks.positive_number("epsilon", epsilon)
        self.epsilon = epsilon
        self._set_scale(temperature, sharpness, epsilon)
        if margin is not None and shaping != "hinge":
            raise ValueError(
                f'margin={margin} is that of shaping="hinge", got {shaping!r}: leave one out'
            )
        self.shaping = shaping if margin is None else Hinge(margin)
        self._psi()  # which an unknown name has not
        checks.positive_number("kernel_tol", kernel_tol)
        self.kernel_tol = kernel_tol
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    @property
    def _regularisation(self) -> float:
        return self.epsilon

    def _psi(self) -> str | Shaping:
        """ψ, or its name where the kernel needs no function."""
        return self.shaping if self.shaping in ("linear", "log_sigmoid") else resolve(self.shaping)

    def compute(self, batch: Batch) -> Tensor:
        """KL(P̃‖P) = −H(P̃) + ⟨P̃, C⟩/ε − Σ ⟨target marginal, log-scaling⟩ (mathematics §2)."""
        batch = batch.weighed(self.sweeps.marginals)
        how = batch.shared(self.sweeps)
        target = batch.relation.triplets()
        masses = torch.cat(target.marginals)
        imposed = batch.imposed(how, masses, [len(mass) for mass in target.marginals])
        embedded = batch.anchors, batch.references
        psi = self._psi()
        takes_epsilon = psi == "linear" or isinstance(psi, Hinge)
        factor = inverse_product(batch.temperature, self.epsilon if takes_epsilon else 1.0)
        if isinstance(psi, Hinge) and not isinstance(batch.relation, ListedTriplets):
            hinges = HingeTriplets(batch.within, psi.over(self.epsilon))
            both = hinge_potentials(*embedded, factor, imposed, hinges, how, target.weights)
            mean, potentials = both  # from the same sorted scores
        else:
            problem, mean = self._costs(batch, target, factor, how)
            potentials = embedded_potentials(*embedded, factor, imposed, problem, how)
        loss = mean - target.entropy - expectation(masses, potentials)
        return loss.to(batch.dtype)

    def _costs(
        self, batch: Batch, target: TripletTarget, factor: float | Tensor, how: Sweeps
    ) -> tuple[Problem, Tensor]:
        """What the engine is asked to couple, and ⟨P̃, C⟩/ε."""
        within, epsilon = batch.within, self.epsilon
        if self.shaping == "linear":
            # −c⟨P̃¹² − P̃¹³, s⟩ (mathematics §2)
            return LinearTriplets(within), -factor * batch.inner(target.contrast)
        if self.shaping == "log_sigmoid":
            checks.quadrature_tolerance(self.kernel_tol, batch.anchors.dtype)
            reach = None if on_host(batch.anchors) else batch.reach(factor)
            triplets = LogSigmoidTriplets(within, epsilon, self.kernel_tol, reach)
            shard = triplets.shard((len(batch.anchors), len(batch.references)), how)
            mean = mean_log_sigmoid_cost(batch, target, factor, triplets, shard)
            return triplets, mean / epsilon
        psi = resolve(self.shaping)
        if how.memory == "streamed" and not isinstance(psi, Hinge):
            raise ValueError(
                'memory="streamed" needs shaping="linear", "log_sigmoid" or a hinge, got '
                f'{self.shaping!r}: use memory="auto", which takes the costs of a few anchors at a '
                "time"
            )
        scores = factor * batch.wide_similarity()
        if isinstance(psi, Hinge):
            psi = psi.over(epsilon)
            mean = mean_cost(batch, target, scores, psi, how.memory_budget)
            return HingeTriplets(within, psi), mean
        if on_host(scores):
            check_margins(psi, scores)
        mean = mean_cost(batch, target, scores, psi, how.memory_budget)
        return ShapedTriplets(within, epsilon, psi, how.memory_budget), mean / epsilon

    def compute_both(self, batch: Batch) -> Tensor:
        """Both at once where they have one kernel: linear ψ, all sweeps, their own gradient."""
        how = self.sweeps
        alike = self.shaping == "linear" and how.tol is None and how.gradient == "unrolled"
        if not (alike and goes_both_ways(batch.anchors, batch.references)):
            return super().compute_both(batch)
        factor = inverse_product(batch.temperature, self.epsilon)
        value: Tensor | float = 0.0
        masses, imposed = [], []
        for way in (batch.weighed(how.marginals), batch.mirrored().weighed(how.marginals)):
            target = way.relation.triplets()
            sizes = [len(mass) for mass in target.marginals]
            masses.append(target.marginals)
            imposed.append(way.imposed(how, torch.cat(target.marginals), sizes).split(sizes))
            value = value - factor * way.inner(target.contrast) - target.entropy
        samples = torch.cat([batch.anchors, batch.references])
        problem = BothWays(len(batch.anchors))
        potentials = embedded_potentials(
            samples, samples, factor, problem.joined(*imposed), problem, batch.shared(how)
        )
        value = value - expectation(problem.joined(*masses), potentials)
        return (value / 2).to(batch.dtype)

    def _diagnose(self, batch: Batch) -> dict[str, float | str]:
        found = super()._diagnose(batch)
        psi = resolve(self.shaping)
        ends = extreme_margins(batch) / as_number(batch.temperature)
        lowest, highest = psi(ends).tolist()
        if lowest - highest <= 1e-12 * max(1.0, abs(lowest)) and self.shaping != "linear":
            found["note"] = (
                "ψ is constant on all triplets of the batch: they are all satisfied, and hardly "
                "any gradient is left"
            )
        return found
