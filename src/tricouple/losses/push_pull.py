"""Neg-IOT-CL-PushPull: one plan that attracts positives, one that repels negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Group
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch
from tricouple.losses.costs import pair_divergence
from tricouple.memory import DEFAULT_BUDGET
from tricouple.numeric import inverse_product, on_host
from tricouple.ot.engine import Sweeps
from tricouple.shaping import Shaping, check_decreasing, resolve


class PushPull(ContrastiveLoss):
    """Transport for positives and anti-transport for negatives (paper: Neg-IOT-CL-PushPull).

    ``KL(P̃₊ ‖ P₊) + KL(P̃₋ ‖ P₋)``: P₊ minimises and P₋ maximises the entropic transport cost
    ``C_ij = ψ(s_ij/τ)``; the targets are uniform on A⁺ and A⁻, the (anchor, positive) and the
    (anchor, negative) pairs (mathematics §5).

    With ψ(t) = −t and ε₊ = ε₋ = ε this is ``NegMMIOT`` for balanced classes, two views or
    one-to-one captions, up to its exclusion j ≠ k (mathematics §8): there the three-marginal plan
    is the product of these two, given the anchor, as in all tree-structured multi-marginal
    transport (Haasler, Singh, Zhang, Karlsson and Chen 2020; Altschuler and Boix-Adserà). With
    log-sigmoid, or any ψ that is not affine, the two are different losses.

    Args:
        temperature: τ; a number, or a tensor or ``nn.Parameter`` that receives its gradient. If it
            is left out it follows from the sharpness.
        epsilon_pos: ε₊, regularisation of the attracting plan.
        epsilon_neg: ε₋, regularisation of the repelling plan.
        n_iters: Sinkhorn sweeps, at most.
        tol: Stop sweeping when the marginal error (L1) is below this.
        shaping: ψ: ``"linear"`` is ψ(t) = −t; also ``"log_sigmoid"``, ``"exponential"``,
            ``"hinge"``, ``"squared_hinge"``, a ``Hinge`` or any decreasing callable.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``, as in ``NegMMIOT``.
        marginals: ``"uniform"`` as in the paper, ``"target"`` or ``"classes"``, as in ``NegMMIOT``.
        sharpness: c = 1/(τε₊) instead of a temperature; 10 if neither is given. ``"paper"`` is the
            paper's c = 100, which a training with SGD does not survive (docs/sharpness.md).
        empty: ``"raise"`` or ``"zero"`` for batches without an admissible triplet.
        check: ``"full"`` or ``"shapes"``, as in ``ContrastiveLoss`` (docs/accelerators.md).
        group: Processes whose samples are one batch, as in ``ContrastiveLoss``.
        memory: ``"auto"``, ``"matrices"`` or ``"streamed"``, as in ``NegMMIOT``.
        memory_budget: Bytes.
        negatives: A⁻. ``"projected"``, as in the paper's Algorithm 1: the (anchor, negative) pairs
            of admissible triplets, so that an anchor without a positive repels nobody.
            ``"all"``, as in its appendix: every pair of unequal identity. They differ only in
            batches with such anchors; for explicit triplets both are the listed pairs.

    Example:
        >>> criterion = PushPull(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    shown = ("temperature", "epsilon_pos", "epsilon_neg", "shaping", "negatives", "sweeps")
    scale = "temperature"
    paper_sharpness = 100.0
    temperature: float | Tensor
    sweeps: Sweeps

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        epsilon_pos: float = 0.1,
        epsilon_neg: float = 0.1,
        n_iters: int = 10,
        tol: float | None = None,
        shaping: str | Shaping = "linear",
        gradient: str = "unrolled",
        marginals: str = "uniform",
        *,
        sharpness: float | str | None = None,
        empty: str = "raise",
        check: str = "full",
        group: Group = None,
        memory: str = "auto",
        memory_budget: float = DEFAULT_BUDGET,
        negatives: str = "projected",
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        checks.positive_number("epsilon_pos", epsilon_pos)
        checks.positive_number("epsilon_neg", epsilon_neg)
        resolve(shaping)
        checks.one_of("negatives", negatives, ("projected", "all"))
        self.epsilon_pos = epsilon_pos
        self.epsilon_neg = epsilon_neg
        self._set_scale(temperature, sharpness, epsilon_pos)
        self.shaping = shaping
        self.negatives = negatives
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    @property
    def _regularisation(self) -> float:
        return self.epsilon_pos

    def compute(self, batch: Batch) -> Tensor:
        """Both divergences, of cosines or of costs shaped from them."""
        batch = batch.weighed(self.sweeps.marginals)
        attract: float | Tensor
        repel: float | Tensor
        costs = None
        if self.shaping == "linear":
            attract = inverse_product(batch.temperature, self.epsilon_pos)
            repel = -inverse_product(batch.temperature, self.epsilon_neg)
        else:
            # Costs instead of similarities: transport now seeks the small ones.
            costs = self._costs(batch)
            attract, repel = -1 / self.epsilon_pos, 1 / self.epsilon_neg
        relation = batch.relation
        # The paper has two A⁻: a projection of A in Algorithm 1, all unequal pairs in its appendix.
        push = relation.repelling() if self.negatives == "projected" else relation.negatives()
        targets = relation.attracting(), push
        attracted, repelled = (
            pair_divergence(batch, target, sharpness, self.sweeps, costs=costs)[0]
            for target, sharpness in zip(targets, (attract, repel), strict=True)
        )
        return (attracted + repelled).to(batch.dtype)

    def _costs(self, batch: Batch) -> Tensor:
        """ψ(s/τ), shape (N, M)."""
        if self.sweeps.memory == "streamed":
            raise ValueError(
                f"memory='streamed' needs shaping='linear', got {self.shaping!r}: costs of another "
                "shape are an N×N matrix; use memory='matrices'"
            )
        inverse = inverse_product(batch.temperature, 1.0, batch.anchors.dtype)
        margins = batch.similarity() * inverse
        psi = resolve(self.shaping)
        if self._reads and on_host(margins):
            lowest, highest = (float(end) for end in torch.aminmax(margins.detach()))
            check_decreasing(psi, lowest, max(highest, lowest + 1e-3), margins)
        return psi(margins)
