"""Neg-MMIOT-CL: KL from the target triplets to the entropic three-marginal plan."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch
from tricouple.losses.costs import mean_cost, mean_log_sigmoid_cost
from tricouple.losses.coupling import Sweeps
from tricouple.memory import DEFAULT_BUDGET
from tricouple.numeric import expectation, inverse_product, uniform
from tricouple.ot.potentials import embedded_potentials
from tricouple.ot.solvers import linear_triplet, log_sigmoid_triplet, shaped_triplet
from tricouple.shaping import Shaping, check_margins, resolve


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
        shaping: ψ; ``"linear"`` is ψ(t) = −t, ``"log_sigmoid"`` is ψ(t) = log(1 + e^{−t}), both
            fast. ``"exponential"``, ``"hinge"``, ``"squared_hinge"`` and every callable (strictly
            decreasing, differentiable, entry by entry) take O(N³) time, a few anchors at a time.
        gradient: ``"unrolled"`` (exact for the sweeps done), ``"implicit"`` (exact at convergence:
            give it enough ``n_iters`` and a ``tol``) or ``"envelope"`` (cheapest; exact at
            convergence in balanced batches).
        marginals: ``"uniform"`` as in the paper, or ``"target"``: those of P̃, so that samples
            without a positive drop out.
        empty: ``"raise"`` or ``"zero"`` for batches without an admissible triplet.
        memory: ``"matrices"`` stores N×N kernels, ``"streamed"`` recomputes tiles of them in every
            pass, in O(N·d) memory; ``"auto"`` streams what exceeds the budget.
        memory_budget: Bytes; for other ψ than the two fast ones, those of the N³ costs: kept if all
            fit, else computed for a few anchors at a time.
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
        shaping: str | Shaping = "linear",
        gradient: str = "unrolled",
        marginals: str = "uniform",
        *,
        empty: str = "raise",
        memory: str = "auto",
        memory_budget: float = DEFAULT_BUDGET,
        kernel_tol: float = 1e-6,
    ) -> None:
        super().__init__(empty=empty)
        checks.positive_number("temperature", temperature)
        checks.positive_number("epsilon", epsilon)
        resolve(shaping)
        checks.positive_number("kernel_tol", kernel_tol)
        self.temperature = temperature
        self.epsilon = epsilon
        self.shaping = shaping
        self.kernel_tol = kernel_tol
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    def compute(self, batch: Batch) -> Tensor:
        """KL(P̃‖P) = −log|A| + ⟨P̃, C⟩/ε − Σ ⟨target marginal, log-scaling⟩.

        For linear ψ the second term is −c⟨P̃¹² − P̃¹³, s⟩.
        """
        checks.positive_number("temperature", self.temperature)
        target = batch.relation.triplets()
        marginals = target.marginals
        masses = torch.cat(marginals)
        sizes = tuple(len(mass) for mass in marginals)
        imposed = uniform(sizes, masses) if self.sweeps.marginals == "uniform" else masses
        if self.shaping == "linear":
            factor = inverse_product(self.temperature, self.epsilon)
            solvers = linear_triplet(self.sweeps.memory_of(batch, matrices=2))
            cost = -factor * batch.inner(target.contrast)
        elif self.shaping == "log_sigmoid":
            checks.quadrature_tolerance(self.kernel_tol, batch.anchors.dtype)
            factor = inverse_product(self.temperature, 1.0)
            memory = self.sweeps.memory_of(batch, matrices=2)
            solvers = log_sigmoid_triplet(self.epsilon, self.kernel_tol, memory)
            cost = mean_log_sigmoid_cost(batch, factor * batch.similarity()) / self.epsilon
        else:
            factor = inverse_product(self.temperature, 1.0)
            scores = factor * batch.wide_similarity()
            psi, budget = self._checked_shaping(scores), self.sweeps.memory_budget
            solvers = shaped_triplet(psi, self.epsilon, budget)
            cost = mean_cost(batch, scores, psi, budget) / self.epsilon
        settings = self.sweeps.settings(solvers, sizes, batch)
        potentials = embedded_potentials(batch.anchors, batch.references, factor, imposed, settings)
        loss = -math.log(target.size) + cost - expectation(masses, potentials)
        return loss.to(batch.dtype)

    def _checked_shaping(self, scores: Tensor) -> Shaping:
        """ψ as a function that suits a batch."""
        if self.sweeps.memory == "streamed":
            raise ValueError(
                'memory="streamed" needs shaping="linear" or "log_sigmoid", got '
                f'{self.shaping!r}: use memory="auto", which takes the costs of a few anchors at a '
                "time"
            )
        psi = resolve(self.shaping)
        check_margins(psi, scores)
        return psi

    def extra_repr(self) -> str:
        """The settings, for printing."""
        tau = "learnable" if isinstance(self.temperature, nn.Parameter) else self.temperature
        return f"temperature={tau}, epsilon={self.epsilon}, shaping={self.shaping!r}, {self.sweeps}"
