"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import (
    DEFAULT_EPSILON,
    Check,
    ContrastiveLoss,
    Empty,
    Gradient,
    Marginals,
    Memory,
)
from tricouple.losses.coupled import Part, Sweeps, loss
from tricouple.losses.diagnostics import satisfied
from tricouple.losses.margins import listed_costs
from tricouple.numeric import on_host
from tricouple.ot.forms import Linear
from tricouple.ot.kernels import epsilon_of_factor, kernel_of
from tricouple.ot.solver import DEFAULT_BUDGET
from tricouple.relations import ListedTriplets
from tricouple.shaping import Hinge, Shaping, ShapingName, resolve

_FALL = 4.0  # by how much a temperature on a device may have fallen since it was read
_WIDE: Any = {"dtype": torch.float64, "device": "cpu"}


class NegMMIOT(ContrastiveLoss):
    """Anchor, positive and negative in one coupling (paper: Neg-MMIOT-CL), in O(N²).

    ``KL(P̃ ‖ P)``, where P̃ is uniform on the admissible triplets and P is the entropic transport
    plan of three copies of the batch for the cost ``C_ijk = ψ((s_ij − s_ik)/τ)``.

    For ψ(t) = −t the loss depends on τ and ε only through the sharpness c = 1/(τε). Then the plan
    decouples: given its anchor, positive and negative are independent but for j ≠ k, and with
    balanced classes, two views or one-to-one captions the loss *is* ``PushPull`` with ε₊ = ε₋ = ε,
    up to the effect of that exclusion, O(1/N) (mathematics §8). With log-sigmoid, or any ψ that is
    not affine, it is not. That a tree-structured cost, such as the star i–j, i–k of a linear ψ,
    takes O(N²) per sweep is known from Haasler, Singh, Zhang, Karlsson and Chen (2020) and from
    Altschuler and Boix-Adserà.

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
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.
        memory: ``"matrices"`` stores N×N kernels, ``"streamed"`` recomputes tiles of them in every
            pass, in O(N·d) memory; ``"auto"`` streams what exceeds the budget.
        memory_budget: Bytes; for other ψ than the fast ones, those of the N³ costs: kept if all
            fit, else computed for a few anchors at a time.
        kernel_tol: Relative error of the log-sigmoid kernel, from which the number of terms of its
            quadrature follows: loss and gradient are those of a ψ that differs from log-sigmoid by
            at most ``kernel_tol · ε``. 1e-3 takes two thirds of the time of 1e-6.

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
        epsilon: float = DEFAULT_EPSILON,
        n_iters: int = 10,
        tol: float | None = None,
        shaping: ShapingName | Shaping = "linear",
        gradient: Gradient = "unrolled",
        marginals: Marginals = "uniform",
        *,
        margin: float | None = None,
        sharpness: float | str | None = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
        memory: Memory = "auto",
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
        self.shaping: str | Shaping = shaping if margin is None else Hinge(margin)
        resolve(self.shaping)
        checks.positive_number("kernel_tol", kernel_tol)
        self.kernel_tol = kernel_tol
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    @property
    def _regularisation(self) -> float:
        return self.epsilon

    def compute(self, batch: Batch) -> Tensor:
        """KL(P̃‖P) = −H(P̃) + ⟨P̃, C⟩/ε − Σ ⟨target marginal, log-scaling⟩ (mathematics §2)."""
        value = loss(batch, self.sweeps, self._parts)
        if self.shaping == "linear" or not isinstance(batch.relation, ListedTriplets):
            return value
        return value + listed_costs(batch, batch.relation, resolve(self.shaping), self.epsilon)

    def compute_both(self, batch: Batch) -> Tensor:
        """The mean of both directions, from one set of similarities."""
        return loss(batch, self.sweeps, self._parts, both=True)

    def _parts(self, batch: Batch) -> list[Part]:
        relation = batch.with_marginals(self.sweeps.marginals).relation
        target, how = relation.triplets(), self.sweeps
        part = partial(
            Part, target.marginals, target.entropy, imposed=how.imposed(target.marginals)
        )
        if self.shaping == "linear":  # −c⟨P̃¹² − P̃¹³, s⟩ (mathematics §2)
            c = batch.sharpness(self.epsilon)
            form = partial(Linear, sharpness=c.value, axes=3)
            return [part(form, sharpness=c, linear=target.contrast)]
        c = batch.sharpness(epsilon_of_factor(self.shaping, self.epsilon))
        host, fall = on_host(batch.anchors), 1.01 if isinstance(c.value, float) else _FALL
        kernel = kernel_of(
            self.shaping,
            c.value,
            self.epsilon,
            batch.entries,
            kernel_tol=self.kernel_tol,
            reach=None if host else c.most * fall,
            used=(lambda: torch.tensor([-c.most, c.most], **_WIDE)) if host else None,
            streamed=how.memory == "streamed",
            memory_budget=how.memory_budget,
        )
        weights = None if isinstance(relation, ListedTriplets) else target.weights
        matrices = 4.0 if isinstance(resolve(self.shaping), Hinge) else 1.0
        return [part(kernel, sharpness=c, weights=weights, matrices=matrices)]

    def _diagnose(self, batch: Batch) -> dict[str, float | str]:
        return super()._diagnose(batch) | satisfied(batch, self.shaping)
