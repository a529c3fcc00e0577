"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

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
    GivenSharpness,
    Gradient,
    Marginals,
    Memory,
)
from tricouple.losses.coupled import Part
from tricouple.numeric import inverse_product, on_host
from tricouple.ot.forms import Linear
from tricouple.ot.kernels import epsilon_of_factor, kernel_of
from tricouple.ot.solver import DEFAULT_BUDGET, Sweeps
from tricouple.relations import ListedTriplets
from tricouple.shaping import Hinge, Shaping, ShapingName, resolve

_FALL = 4.0  # by how much a temperature on a device may have fallen since it was read
_WIDE: Any = {"dtype": torch.float64, "device": "cpu"}


class NegMMIOT(ContrastiveLoss):
    """Anchor, positive and negative in one coupling (paper: Neg-MMIOT-CL), in O(N²).

    ``KL(P̃ ‖ P)``, where P̃ is uniform on the admissible triplets and P is the entropic transport
    plan of three copies of the batch for the cost ``C_ijk = ψ((s_ij − s_ik)/τ)``. With ``pairs=W``
    P̃_ijk ∝ W_ij.

    For ψ(t) = −t the loss depends on τ and ε only through the sharpness c = 1/(τε). Given the
    anchor, positive and negative are then independent but for j ≠ k. With balanced classes, two
    views or one-to-one captions the loss is ``PushPull`` with ε₊ = ε₋ = ε, up to the effect of that
    exclusion, O(1/N) (mathematics §8); with any ψ that is not affine, such as log-sigmoid, it is
    not. Iterations of tree costs, as that of a linear ψ, take O(N²) (Haasler, Singh, Zhang,
    Karlsson and Chen 2020; Altschuler and Boix-Adserà).

    Args:
        sharpness: c = 1/(τε), which sets the temperature; 10 if neither is given. ``"paper"`` is
            c = 100, with which SGD training can collapse (docs/sharpness.md).
        temperature: τ instead; a number, or a tensor or ``nn.Parameter`` that gets its gradient.
        epsilon: ε, the entropic regularisation.
        n_iters: Sinkhorn iterations (sweeps), at most.
        tol: Stop when the marginal error (L1) is below this.
        shaping: ψ (docs/shaping.md). Fast are ``"linear"``, −t; ``"log_sigmoid"``, log(1 + e^{−t});
            ``tricouple.shaping.Hinge(margin)``, max(0, margin − t); ``"hinge"``, which is
            max(0, 1 − t) − t/100. ``"exponential"``, ``"squared_hinge"`` and every callable
            (decreasing but for flat parts, differentiable, entry by entry) take O(N³) time, as
            hinges do without the compiled module.
        margin: Of ``shaping="hinge"``, in units of t: the same as ``shaping=Hinge(margin)``.
        gradient: ``"unrolled"`` (exact for what was done), ``"implicit"`` (exact at convergence:
            give it enough ``n_iters`` and a ``tol``) or ``"envelope"`` (no adjoint; exact at
            convergence in balanced batches).
        marginals: ``"uniform"`` as in the paper; ``"target"``: those of P̃, so that samples without
            a positive drop out; ``"classes"``: the same mass for every class, in P̃ as well, so that
            small classes count as much as large ones (mathematics §11).
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.
        memory: ``"matrices"`` stores N×N kernels, ``"streamed"`` recomputes tiles of them in every
            pass, in O(N·d) memory; ``"auto"`` streams what exceeds the budget.
        memory_budget: Bytes of kernels; of the N³ costs of a ψ that is not fast.
        kernel_tol: Relative error of the log-sigmoid kernel: loss and gradient are those of a ψ
            that differs by at most ``kernel_tol · ε``. 1e-3 takes two thirds of the time of 1e-6.

    Example:
        >>> criterion = NegMMIOT(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    scale, regularisation_setting = "temperature", "epsilon"
    paper_sharpness = 100.0
    one_product = True
    temperature: float | Tensor

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
        sharpness: GivenSharpness = None,
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

    def compute(self, batch: Batch) -> Tensor:
        """KL(P̃‖P) = −H(P̃) + ⟨P̃, C⟩/ε − Σ ⟨target marginal, log-scaling⟩ (mathematics §2)."""
        value, relation = super().compute(batch), batch.relation
        if self.shaping == "linear" or not isinstance(relation, ListedTriplets):
            return value
        assert batch.references is not None
        # ⟨P̃, C⟩/ε, by autograd: the negative of a listed triplet depends on the positive.
        margins = relation.margins(batch.anchors, batch.references) * inverse_product(
            batch.temperature, 1.0
        )
        costs = relation.mean(resolve(self.shaping)(margins)) / self.epsilon
        return value + costs.to(batch.dtype)

    def _parts(self, batch: Batch) -> list[Part]:
        relation = batch.relation.with_marginals(self.sweeps.marginals)
        target, how = relation.triplets(), self.sweeps
        masses, entropy = target.marginals, target.entropy
        if self.shaping == "linear":  # −c⟨P̃¹² − P̃¹³, s⟩ (mathematics §2)
            c = batch.sharpness(self.epsilon)
            form = partial(Linear, sharpness=c.value, axes=3)
            return [Part(masses, c, entropy, form, target.contrast)]
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
        return [Part(masses, c, entropy, kernel, weights=weights, matrices=matrices)]
