"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch
from tricouple.losses.log_sigmoid_cost import mean_log_sigmoid_cost
from tricouple.numeric import expectation, inverse_product, uniform
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.potentials import (
    LINEAR_TRIPLET,
    Settings,
    log_sigmoid_triplet,
    solve_potentials,
)
from tricouple.shaping import TRIPLET_SHAPINGS


class NegMMIOT(ContrastiveLoss):
    """Anchor, positive and negative in one coupling (paper: Neg-MMIOT-CL), in O(N²).

    ``KL(P̃ ‖ P)``, where P̃ is uniform on the admissible triplets and P is the entropic transport
    plan of three copies of the batch for the cost ``C_ijk = ψ((s_ij − s_ik)/τ)``.

    For ψ(t) = −t the loss depends on τ and ε only through the sharpness c = 1/(τε).

    Args:
        temperature: τ; a number, or a tensor or ``nn.Parameter`` that receives its gradient.
        epsilon: ε, the entropic regularisation.
        n_iters: Sinkhorn sweeps, at most.
        tol: Stop sweeping when the marginal error (L1) is below this.
        shaping: ψ; ``"linear"`` is ψ(t) = −t, ``"log_sigmoid"`` is ψ(t) = log(1 + e^{−t}).
        gradient: ``"unrolled"`` (exact for the sweeps done), ``"implicit"`` (exact at convergence:
            give it enough ``n_iters`` and a ``tol``) or ``"envelope"`` (cheapest; exact at
            convergence in balanced batches).
        marginals: ``"uniform"`` as in the paper, or ``"target"``: those of P̃, so that samples
            without a positive drop out.
        empty: ``"raise"`` or ``"zero"`` for batches without an admissible triplet.
        kernel_tol: Relative error of the log-sigmoid kernel, from which its quadrature is chosen.

    Example:
        >>> criterion = NegMMIOT(temperature=0.1, epsilon=0.1)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.1,
        epsilon: float = 0.1,
        n_iters: int = 10,
        tol: float | None = None,
        shaping: str = "linear",
        gradient: str = "unrolled",
        marginals: str = "uniform",
        *,
        empty: str = "raise",
        kernel_tol: float = 1e-6,
    ) -> None:
        super().__init__(empty=empty)
        checks.positive_number("temperature", temperature)
        checks.positive_number("epsilon", epsilon)
        checks.sweeps(n_iters, tol)
        checks.one_of("shaping", shaping, TRIPLET_SHAPINGS)
        checks.one_of("gradient", gradient, GRADIENTS)
        checks.one_of("marginals", marginals, ("uniform", "target"))
        self.temperature = temperature
        self.epsilon = epsilon
        self.n_iters = n_iters
        self.tol = tol
        self.shaping = shaping
        self.gradient = gradient
        self.marginals = marginals
        checks.positive_number("kernel_tol", kernel_tol)
        self.kernel_tol = kernel_tol

    def compute(self, batch: Batch) -> Tensor:
        """KL(P̃‖P) = −log|A| + ⟨P̃, C⟩/ε − Σ ⟨target marginal, log-scaling⟩.

        For linear ψ the second term is −c⟨P̃¹² − P̃¹³, s⟩.
        """
        checks.positive_number("temperature", self.temperature)
        target = batch.relation.triplets()
        marginals = target.marginals
        masses = torch.cat(marginals)
        sizes = tuple(len(mass) for mass in marginals)
        imposed = uniform(sizes, masses) if self.marginals == "uniform" else masses
        if self.shaping == "linear":
            solvers = LINEAR_TRIPLET
            factor = inverse_product(self.temperature, self.epsilon)
        else:
            checks.quadrature_tolerance(self.kernel_tol, batch.anchors.dtype)
            solvers = log_sigmoid_triplet(self.epsilon, self.kernel_tol)
            factor = inverse_product(self.temperature, 1.0)
        similarity = batch.similarity()
        settings = Settings(solvers, sizes, batch.within, self.n_iters, self.tol, self.gradient)
        potentials, _ = solve_potentials(similarity, factor, imposed, settings)
        if self.shaping == "linear":
            cost = -factor * batch.inner(target.contrast)
        else:
            cost = mean_log_sigmoid_cost(batch, factor * similarity) / self.epsilon
        loss = -math.log(target.size) + cost - expectation(masses, potentials)
        return loss.to(batch.dtype)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        tau = "learnable" if isinstance(self.temperature, nn.Parameter) else self.temperature
        return (
            f"temperature={tau}, epsilon={self.epsilon}, n_iters={self.n_iters}, "
            f"shaping={self.shaping!r}, gradient={self.gradient!r}, marginals={self.marginals!r}"
        )
