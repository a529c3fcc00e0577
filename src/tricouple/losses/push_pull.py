"""Neg-IOT-CL-PushPull: one plan that attracts positives, one that repels negatives."""

from dataclasses import replace
from functools import partial
from typing import Literal

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
from tricouple.ot.solver import DEFAULT_BUDGET, Sweeps
from tricouple.shaping import Shaping, ShapingName, check_decreasing, resolve


class PushPull(ContrastiveLoss):
    """Transport for positives and anti-transport for negatives (paper: Neg-IOT-CL-PushPull).

    ``KL(P̃₊ ‖ P₊) + KL(P̃₋ ‖ P₋)``: P₊ minimises and P₋ maximises the entropic transport cost
    ``C_ij = ψ(s_ij/τ)``; the targets are uniform on A⁺ and A⁻, the (anchor, positive) and the
    (anchor, negative) pairs (mathematics §5). With ``pairs=`` P̃₊ is proportional to W.

    With ψ(t) = −t and ε₊ = ε₋ = ε this is ``NegMMIOT`` for balanced classes, two views or
    one-to-one captions, up to its exclusion j ≠ k (mathematics §8). With any ψ that is not affine
    the two are different losses.

    Args:
        sharpness: c = 1/(τε₊), which sets the temperature; 10 if neither is given; ``"paper"`` is
            c = 100, as in ``NegMMIOT``.
        temperature: τ instead; a number, or a tensor or ``nn.Parameter`` that gets its gradient.
        epsilon_pos: ε₊, regularisation of the attracting plan.
        epsilon_neg: ε₋, regularisation of the repelling plan.
        shaping: ψ: a name as in ``NegMMIOT``, a ``Hinge`` or any decreasing callable.
        n_iters, tol, gradient, marginals, memory, memory_budget: As in ``NegMMIOT``.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.
        negatives: A⁻. ``"projected"``, as in the paper's Algorithm 1: the (anchor, negative) pairs
            of admissible triplets, so that an anchor without a positive repels no sample.
            ``"all"``, as in its appendix: every pair of unequal label. They differ only in
            batches with such anchors; for explicit triplets both are the listed pairs.

    Example:
        >>> criterion = PushPull(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    scale, regularisation_setting = "temperature", "epsilon_pos"
    paper_sharpness = 100.0
    temperature: float | Tensor

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        epsilon_pos: float = DEFAULT_EPSILON,
        epsilon_neg: float = 0.1,
        n_iters: int = 10,
        tol: float | None = None,
        shaping: ShapingName | Shaping = "linear",
        gradient: Gradient = "unrolled",
        marginals: Marginals = "uniform",
        *,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
        memory: Memory = "auto",
        memory_budget: float = DEFAULT_BUDGET,
        negatives: Literal["projected", "all"] = "projected",
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        checks.positive_number("epsilon_pos", epsilon_pos)
        checks.positive_number("epsilon_neg", epsilon_neg)
        resolve(shaping)
        checks.one_of("negatives", negatives, ("projected", "all"))
        self.epsilon_pos = epsilon_pos
        self.epsilon_neg = epsilon_neg
        self._set_scale(temperature, sharpness, epsilon_pos)
        self.shaping: str | Shaping = shaping
        self.negatives = negatives
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    def compute(self, batch: Batch) -> Tensor:
        """Both divergences, of cosines or of costs shaped from them."""
        return super().compute(batch if self.one_product else self._shaped(batch))

    @property
    def one_product(self) -> bool:
        """With the linear ψ alone."""
        return self.shaping == "linear"

    def _parts(self, batch: Batch) -> list[Part]:
        relation = batch.relation.with_marginals(self.sweeps.marginals)
        # The paper has two A⁻: a projection of A in Algorithm 1, all unequal pairs in its appendix.
        pull = relation.positives(of_triplets=True)
        push = relation.negatives(of_triplets=self.negatives == "projected")
        parts = []
        ends = ((1, pull, self.epsilon_pos), (-1, push, self.epsilon_neg))
        for sign, target, epsilon in ends:
            c = batch.sharpness(epsilon)
            form = partial(Linear, sharpness=c.value, axes=2, sign=sign)
            parts.append(Part(target.marginals, c, target.entropy, form, target.pairs.scaled(sign)))
        return parts

    def _shaped(self, batch: Batch) -> Batch:
        """The batch with −ψ(s/τ), (N, M), for its similarities."""
        if self.sweeps.memory == "streamed":
            raise ValueError(
                f"memory='streamed' needs shaping='linear', got {self.shaping!r}: costs of another "
                "shape are an N×N matrix; use memory='matrices'"
            )
        inverse = inverse_product(batch.temperature, 1.0, batch.anchors.dtype)
        margins = batch.similarity() * inverse
        psi = resolve(self.shaping)
        if self.check == "full" and on_host(margins) and not isinstance(self.shaping, str):
            lowest, highest = (float(end) for end in torch.aminmax(margins.detach()))
            highest = max(highest, lowest + 1e-3 * max(1.0, abs(lowest)))
            check_decreasing(psi, lowest, highest, margins)
        scores = -psi(margins)
        return replace(batch, anchors=scores, references=None, temperature=1.0, gathered=None)
