"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch, Sharpness
from tricouple.groups import Group
from tricouple.losses.base import (
    DEFAULT_EPSILON,
    Check,
    ContrastiveLoss,
    Empty,
    Gradient,
    Marginals,
    Memory,
    number_of,
)
from tricouple.losses.coupled import Part, Sweeps, loss
from tricouple.numeric import inverse_product, on_host, wide_dtype
from tricouple.ot.any_shaping import AnyShaping
from tricouple.ot.forms import Form, Linear
from tricouple.ot.hinge import HingeForm
from tricouple.ot.log_sigmoid import LARGEST_EPSILON, LogSigmoid
from tricouple.ot.scores import Scores
from tricouple.ot.solver import DEFAULT_BUDGET
from tricouple.relations import ListedTriplets
from tricouple.shaping import Hinge, Shaping, ShapingName, check_margins, resolve

# By how much a temperature on a device may have fallen since it was read.
_FALL = 4.0


class NegMMIOT(ContrastiveLoss):
    """Anchor, positive and negative in one coupling (paper: Neg-MMIOT-CL), in O(N²).

    ``KL(P̃ ‖ P)``, where P̃ is uniform on the admissible triplets and P is the entropic transport
    plan of three copies of the batch for the cost ``C_ijk = ψ((s_ij − s_ik)/τ)``.

    For ψ(t) = −t the loss depends on τ and ε only through the sharpness c = 1/(τε). Then the plan
    decouples: given its anchor, positive and negative are independent but for j ≠ k, and with
    balanced classes, two views or one-to-one captions the loss *is* ``PushPull`` with ε₊ = ε₋ = ε,
    up to the effect of that exclusion, O(1/N) (mathematics §8). With log-sigmoid, or any ψ that is
    not affine, it is not: those are three-way. That three-marginal transport with a
    tree-structured cost, as the star i–j, i–k of a linear ψ, takes O(N²) per sweep is known from
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
        return loss(batch, self.sweeps, self._parts) + self._listed_costs(batch)

    def compute_both(self, batch: Batch) -> Tensor:
        """The mean of both directions, from one set of similarities."""
        return loss(batch, self.sweeps, self._parts, both=True)

    def _parts(self, batch: Batch) -> list[Part]:
        relation = batch.with_marginals(self.sweeps.marginals).relation
        target = relation.triplets()
        imposed = self.sweeps.imposed(target.marginals)
        if self.shaping == "linear":  # −c⟨P̃¹² − P̃¹³, s⟩ (mathematics §2)
            c = batch.sharpness(self.epsilon)
            form = partial(Linear, sharpness=c.value, axes=3)
            return [Part(target.marginals, target.entropy, form, imposed, c, target.contrast)]
        kernel, c, matrices = self._kernel(batch)
        part = Part(target.marginals, target.entropy, kernel, imposed, c, matrices=matrices)
        if not isinstance(relation, ListedTriplets):
            part.weights = target.weights
        return [part]

    def _kernel(self, batch: Batch) -> tuple[Callable[[Scores], Form], Sharpness, float]:
        """The form of a ψ that is not linear, its factor of s, and the matrices that it stores."""
        psi = resolve(self.shaping)
        if isinstance(psi, Hinge):
            c = batch.sharpness(self.epsilon)
            return partial(HingeForm, factor=c.value, hinge=psi.over(self.epsilon)), c, 3.5
        c = batch.sharpness()
        if self.shaping == "log_sigmoid" and self.epsilon <= LARGEST_EPSILON:
            checks.quadrature_tolerance(self.kernel_tol, batch.entries)
            reach = None
            if not on_host(batch.anchors):  # where a temperature may fall without being read
                reach = c.most * (1.01 if isinstance(c.value, float) else _FALL)
            kernel = partial(
                LogSigmoid,
                factor=c.value,
                epsilon=self.epsilon,
                tolerance=self.kernel_tol,
                reach=reach,
            )
            return kernel, c, 1.0
        if self.sweeps.memory == "streamed":
            raise ValueError(
                'memory="streamed" needs shaping="linear", "log_sigmoid" or a hinge, got '
                f'{self.shaping!r}: use memory="auto", which takes the costs of a few anchors at a '
                "time"
            )
        if on_host(batch.anchors) and not isinstance(self.shaping, str):
            check_margins(psi, torch.tensor([-c.most, c.most], dtype=torch.float64, device="cpu"))
        budget = self.sweeps.memory_budget
        shaped = partial(
            AnyShaping, factor=c.value, psi=psi, epsilon=self.epsilon, memory_budget=budget
        )
        return shaped, c, 1.0

    def _listed_costs(self, batch: Batch) -> Tensor | float:
        """⟨P̃, C⟩/ε of listed triplets, whose negative depends on the positive; by autograd."""
        relation = batch.relation
        if self.shaping == "linear" or not isinstance(relation, ListedTriplets):
            return 0.0
        margins = listed_margins(batch, relation) * inverse_product(batch.temperature, 1.0)
        return (relation.mean(resolve(self.shaping)(margins)) / self.epsilon).to(batch.dtype)

    def _diagnose(self, batch: Batch) -> dict[str, float | str]:
        found = super()._diagnose(batch)
        psi = resolve(self.shaping)
        ends = _extreme_margins(batch) / number_of(batch.temperature)
        lowest, highest = psi(ends).tolist()
        if lowest - highest <= 1e-12 * max(1.0, abs(lowest)) and self.shaping != "linear":
            found["note"] = (
                "ψ is constant on all triplets of the batch: they are all satisfied, and hardly "
                "any gradient is left"
            )
        return found


def listed_margins(batch: Batch, relation: ListedTriplets) -> Tensor:
    """``s_ij − s_ik`` of each listed triplet, float64."""
    wide = wide_dtype(batch.anchors.device)
    if batch.references is None:
        rows = batch.anchors.to(wide)[relation.anchors]
        near, far = relation.positive_indices, relation.negative_indices
        return (rows.gather(1, near[:, None]) - rows.gather(1, far[:, None]))[:, 0]
    anchors, references = batch.anchors.to(wide), batch.references.to(wide)
    apart = references[relation.positive_indices] - references[relation.negative_indices]
    return (anchors[relation.anchors] * apart).sum(1)


def _extreme_margins(batch: Batch) -> Tensor:
    """The smallest and the largest s_ij − s_ik of all admissible triplets."""
    if isinstance(batch.relation, ListedTriplets):
        return torch.stack(torch.aminmax(listed_margins(batch, batch.relation)))
    scores = batch.similarity()
    positives = batch.relation.attracting().pairs.mask()
    negatives = batch.relation.repelling().pairs.mask()
    lowest = _least(scores, positives) + _least(-scores, negatives)
    highest = _least(-scores, positives) + _least(scores, negatives)
    return torch.stack([lowest.min(), -highest.min()])


def _least(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, math.inf).amin(1)
