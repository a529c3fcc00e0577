"""Batches on which losses go wrong, as calls of the library and of its dense reference."""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import tricouple as tc
from tricouple.ot import dense


@dataclass(frozen=True)
class Batch:
    """What a loss is called with; numbers are those of float32, so that both dtypes have them."""

    embeddings: Tensor  # (N, d)
    labels: Tensor | None = None
    ref_emb: Tensor | None = None  # (M, d)
    ref_labels: Tensor | None = None
    own: Tensor | None = None  # the reference that each anchor is, −1 for none
    triplets: tuple[Tensor, ...] | None = None

    def to(self, dtype: torch.dtype) -> "Batch":
        """The same numbers as fresh leaves."""
        leaves = [
            None if part is None else part.detach().to(dtype, copy=True).requires_grad_()
            for part in self.sides
        ]
        return replace(self, embeddings=leaves[0], ref_emb=leaves[1])

    @property
    def sides(self) -> tuple[Tensor, Tensor | None]:
        """Anchors, and references if they are others."""
        return self.embeddings, self.ref_emb

    @property
    def leaves(self) -> list[Tensor]:
        """What receives a gradient."""
        return [part for part in self.sides if part is not None]

    def loss(self, criterion: Callable[..., Tensor], **more: Any) -> Tensor:
        """The library's."""
        return criterion(
            self.embeddings,
            self.labels,
            indices_tuple=self.triplets,
            ref_emb=self.ref_emb,
            ref_labels=self.ref_labels,
            ref_index=self.own,
            **more,
        )

    def dense(self, function: Callable[..., Tensor], **options: Any) -> Tensor:
        """The reference's, in float64."""
        sides = [None if part is None else part.double() for part in self.sides]
        own = {} if self.own is None else {"own": self.own}
        arguments = sides[0], self.labels, sides[1], self.ref_labels
        return function(*arguments, triplets=self.triplets, **own, **options)

    @property
    def mirrored(self) -> "Batch":
        """Anchors and references exchanged."""
        assert self.ref_emb is not None
        return Batch(self.ref_emb, self.ref_labels, self.embeddings, self.labels)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that float32 has as well."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def batch(kind: str, n: int) -> Batch:
    """A batch of n anchors: one of ``KINDS``."""
    generator = torch.Generator().manual_seed(n)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).double()

    d = 8 if n < 30 else 32
    z, mean, more = draw(n, d), draw(d), draw(n + 3, d)
    y = torch.randint(0, max(2, n // 4), (n,), generator=generator)
    y[:2], y[2] = 0, 1  # a triplet at least
    tight = (mean / mean.norm() + 0.03 * z).float().double()
    outlier = tight.clone()
    outlier[0] = -mean
    clusters = torch.where((torch.arange(n) % 2 == 0)[:, None], tight, -tight)
    single = torch.arange(n)
    single[: max(2, n // 3)] = 0
    memory, memory_labels = torch.cat([z, more[:3]]).flip(0), torch.cat([y, y[:3]]).flip(0)
    places = n + 2 - torch.arange(n)
    some = torch.where(torch.arange(n) <= n // 2, places, -1)
    return {
        "random": Batch(z, y),
        "collapsed": Batch(tight, y),
        "outlier": Batch(outlier, y),
        "duplicates": Batch(z[torch.arange(n) // 4], y),
        "two clusters": Batch(clusters, y),
        "singletons": Batch(z, single),
        "two sets": Batch(z, y, more, torch.cat([y, y[:3]])),
        "all in references": Batch(z, y, memory, memory_labels, places),
        "some in references": Batch(z, y, memory, memory_labels, some),
    }[kind]


KINDS = (
    "random",
    "collapsed",
    "outlier",
    "duplicates",
    "two clusters",
    "singletons",
    "two sets",
    "all in references",
    "some in references",
)


def listed(n: int, number: int) -> Batch:
    """Triplets (number = 3) or pairs (4) as a miner lists them, some of them twice."""
    there = batch("random", n)
    same = there.labels[:, None] == there.labels
    same.fill_diagonal_(False)
    a, p, k = (same[:, :, None] & ~same[:, None, :]).nonzero()[::3].T
    distinct = (a != k) & (p != k)
    a, p, k = (torch.cat([index[distinct], index[distinct][:2]]) for index in (a, p, k))
    indices = (a, p, k) if number == 3 else (a, p, a.roll(1), k.roll(1))
    return replace(there, labels=None, triplets=indices)


# --- the library beside its dense reference -------------------------------------------------------

DENSE = {
    "InfoNCE": dense.info_nce,
    "IOT": dense.iot,
    "PushPull": dense.push_pull,
    "NegMMIOT": dense.neg_mmiot,
}


def bent(t: Tensor) -> Tensor:
    """A ψ that has no name."""
    return torch.exp(-t / 3) - t / 5


def scales(name: str, c: float, epsilon: float = 0.1, epsilon_neg: float | None = None) -> dict:
    """The settings that make a loss's sharpness c, as the library and the reference take them."""
    if name in ("InfoNCE", "IOT"):
        return {{"InfoNCE": "temperature", "IOT": "epsilon"}[name]: 1 / c}
    temperature = {"temperature": 1 / c / epsilon}
    if name == "NegMMIOT":
        return temperature | {"epsilon": epsilon}
    return temperature | {"epsilon_pos": epsilon, "epsilon_neg": epsilon_neg or epsilon}


def settings_of(
    case: dict[str, Any], n_iters: int, settled: int
) -> tuple[dict[str, Any], dict[str, Any], tuple[float, float]]:
    """Settings of both, of the library alone, and errors allowed anyway, of named options.

    After ``settled`` sweeps, which an implicit gradient needs, there is nothing left to do.
    """
    name, shaping = case["name"], case["shaping"]
    shared = scales(name, case["c"], case["epsilon"], case["epsilon_neg"])
    own, least = {"memory": case["memory"]}, (0.0, 0.0)
    if name != "InfoNCE":
        own["gradient"] = case["gradient"]
        shared["n_iters"] = settled if case["gradient"] == "implicit" else n_iters
        shared["marginals"] = case["marginals"]
    if name in ("PushPull", "NegMMIOT"):
        shared["shaping"] = shaping
    if name == "PushPull":
        shared["negatives"] = case["negatives"]
    if (name, shaping) == ("NegMMIOT", "log_sigmoid"):
        own["kernel_tol"], least = 1e-9, (1e-8, 1e-7)
    return shared, own, least


def with_gradient(value: Tensor, leaves: Sequence[Tensor]) -> tuple[float, Tensor]:
    """A loss and its gradient to all leaves in one vector, in float64."""
    gradients = torch.autograd.grad(value, leaves)
    return float(value.detach()), torch.cat([gradient.double().flatten() for gradient in gradients])


@functools.cache
def exact(
    name: str, kind: str, n: int, options: tuple[tuple[str, Any], ...], rule: str = "unrolled"
) -> tuple[float, Tensor]:
    """The dense reference of a loss on a batch."""
    return reference(batch(kind, n), DENSE[name], rule, **dict(options))


def reference(
    there: Batch, function: Callable[..., Tensor], rule: str = "unrolled", **options: Any
) -> tuple[float, Tensor]:
    """Value and gradient in float64; ``rule`` is how the library differentiates."""
    there = there.to(torch.float64)
    sinkhorn = _by_envelope if rule == "envelope" else dense.sinkhorn
    with mock.patch.object(dense, "sinkhorn", sinkhorn):
        value = there.dense(function, **options)
    return with_gradient(value, there.leaves)


_SINKHORN = dense.sinkhorn


def _by_envelope(cost: Tensor, epsilon: Any, masses: Any, n_iters: int) -> tuple[Tensor, ...]:
    """Potentials whose sum has the slope P: ∂KL/∂C is then (P̃ − P)/ε, after any sweep."""
    first, *others = _SINKHORN(cost.detach(), epsilon, masses, n_iters)
    plan = ((sum(torch.meshgrid(first, *others, indexing="ij")) - cost) / epsilon).exp().detach()
    slope = torch.where(plan > 0, plan * cost, 0.0).sum()
    return first + (slope - slope.detach()), *others


def limits(dtype: torch.dtype, c: float) -> tuple[float, float]:
    """Errors of value and gradient that rounding may make: c·u, since scores are of size c."""
    if dtype == torch.float64:  # the reference's gradient itself is off by 1.1e-12 (N = 3)
        value = 1e-12 if c <= 50 else c * 1e-13
        return value, 2 * value
    return (1e-5 if c <= 150 else c * 1e-7,) * 2


def errors(
    found: tuple[float, Tensor], wanted: tuple[float, Tensor], c: float, n: int
) -> tuple[float, float]:
    """Relative errors of value and gradient; forces of size c that balance leave c/√n/100."""
    least = 1e-2 * c / n**0.5
    bent = (found[1] - wanted[1]).norm() / wanted[1].norm().clamp_min(least)
    return abs(found[0] - wanted[0]) / max(1.0, abs(wanted[0])), float(bent)


def assert_right(
    found: tuple[float, Tensor],
    wanted: tuple[float, Tensor],
    c: float,
    n: int,
    dtype: torch.dtype = torch.float64,
    least: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Value and gradient are right up to rounding, or to errors that are allowed anyway."""
    value, gradient = errors(found, wanted, c, n)
    allowed = [max(pair) for pair in zip(limits(dtype, c), least, strict=True)]
    assert value <= allowed[0], f"value off by {value:.1e}: {found[0]}, right is {wanted[0]}"
    assert gradient <= allowed[1], f"gradient off by {gradient:.1e}"


def assert_agrees(
    name: str,
    kind: str,
    n: int,
    c: float,
    dtype: torch.dtype = torch.float64,
    *,
    shared: dict[str, Any] | None = None,
    least: tuple[float, float] = (0.0, 0.0),
    rule: str = "unrolled",
    **own: Any,
) -> None:
    """A loss of the library is the reference's, value and gradient.

    Errors are those of the sharpness ``c``, or at most ``least``. ``shared`` are settings of both,
    ``own`` those of the library; ``rule`` is how the library differentiates.
    """
    shared = scales(name, c) | (shared or {})
    wanted = exact(name, kind, n, tuple(shared.items()), rule)
    there = batch(kind, n).to(dtype)
    found = with_gradient(there.loss(getattr(tc, name)(**shared, **own)), there.leaves)
    assert_right(found, wanted, c, n, dtype, least)


def all_pairs(
    options: dict[str, Sequence[Any]], allowed: Callable[..., bool]
) -> list[dict[str, Any]]:
    """Few combinations of options that have every pair of options that some allowed one has."""
    draws, seen, chosen = random.Random(0), set(), []
    for least in (15, 8, 4, 2, 1):  # first those that bring many new pairs
        for _ in range(4000):
            case = {name: draws.choice(values) for name, values in options.items()}
            new = set(itertools.combinations(case.items(), 2)) - seen
            if len(new) >= least and allowed(**case):
                seen |= new
                chosen.append(case)
    return chosen
