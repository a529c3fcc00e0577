"""Cases of ``versions.py``: what is measured, and the targets of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One call, forward and backward, of one version or of both."""

    name: str
    loss: str  # a name of tricouple, or ClipLoss
    n: int
    d: int = 128
    # What is wanted, and at most how much: "other" (time this/other), the name of another case of
    # the group (time over it), "memory" (N×N matrices), "memory/other"; None: no target.
    limits: dict[str, float | None] = field(default_factory=dict)
    c: float = 10.0  # sharpness
    batch: str = "easy"  # or "outlier", "collapsed", "duplicated"
    sets: str = "one"  # or "two" or "both": across two sets in one direction or in both
    options: dict[str, Any] = field(default_factory=dict)  # of the criterion
    budget: float | None = None  # memory_budget in N×N float32 matrices; the other version streams
    versions: tuple[str, ...] = ("this", "other")
    world: int = 1  # processes that share the batch
    once: bool = False  # too slow for rounds: timed by the call whose memory is measured


Groups = Iterator[list[Case]]  # cases of a group are timed in turns
LOSSES = "InfoNCE", "IOT", "PushPull", "NegMMIOT"
THIS = ("this",)


def easy(sizes: Sequence[int]) -> Groups:
    """Random batches within one set and across two."""
    for n in sizes:
        time_limit = 1.3 if n <= 256 else 1.0 if n < 4096 else 1.4
        limits = {"other": time_limit} | ({"memory/other": 1.3} if n >= 4096 else {})
        yield [Case(name, name, n, limits=limits) for name in LOSSES]
    for n in sizes:
        if 1024 <= n <= 4096:
            limits = {"other": 1.0} | ({"memory/other": 1.3} if n >= 4096 else {})
            yield [Case(f"{name}, two sets", name, n, sets="two", limits=limits) for name in LOSSES]


def clip(sizes: Sequence[int]) -> Groups:
    """Both directions beside ClipLoss."""
    targets = {"InfoNCE": 0.9, "NegMMIOT": 1.1, "PushPull": 1.2}
    for n in sizes:
        group = [Case("ClipLoss", "ClipLoss", n, 512, sets="both", versions=THIS)]
        for name, target in targets.items():
            limits = {"ClipLoss": target, "other": None}
            group.append(Case(f"{name}, both directions", name, n, 512, limits, sets="both"))
        yield group


def streamed(sizes: Sequence[int]) -> Groups:
    """Nothing kept, and half of E kept by a budget; both over the other version, which streams."""
    nothing, losses = {"memory": "streamed"}, ("NegMMIOT", "PushPull")
    for n in sizes:
        # Beside E the budget has room for tiles, histories and embeddings.
        kept = {"limits": {"other": 1.0}, "budget": 0.9 + 2500 / n}
        limits = {"other": 1.5, "memory": None}
        yield [
            *(Case(f"{x}, nothing kept", x, n, limits=limits, options=nothing) for x in losses),
            *(Case(f"{x}, half kept", x, n, **kept) for x in losses),
        ]


def large(sizes: Sequence[int]) -> Groups:
    """Memory of streamed batches: 1.3 GiB within one set of 32768, 0.6 N×N across two of half."""
    more = {"options": {"memory": "streamed"}, "versions": THIS, "once": True}
    for n in sizes:
        limits = {"memory": 1.3 * 2**30 / (4 * n * n)}
        yield [Case("NegMMIOT, streamed", "NegMMIOT", n, limits=limits, **more)]
        across = more | {"limits": {"memory": 0.6}, "sets": "two"}
        yield [Case("NegMMIOT, two sets", "NegMMIOT", n // 2, 512, **across)]


def hard(sizes: Sequence[int]) -> Groups:
    """Batches on which sweeps lose digits, over the easy batch of the same version."""
    kinds = [("outlier", 10.0), ("outlier", 100.0), ("collapsed", 10.0), ("duplicated", 10.0)]
    kinds += [("easy", 100.0), ("easy", 300.0), ("easy", 1000.0)]
    for n in sizes:
        group = [Case("easy", "NegMMIOT", n)]
        for batch, c in kinds:
            limit = 3.0 if batch == "outlier" else 12.0 if c == 1000 else None
            limits = {"easy": limit, "other": None}
            group.append(
                Case(f"{batch}, c = {c:g}", "NegMMIOT", n, limits=limits, c=c, batch=batch)
            )
        yield group


def shaped(sizes: Sequence[int]) -> Groups:
    """Other cost functions over the linear one, and their outliers."""
    for n in sizes:
        group = [Case("linear", "NegMMIOT", n)]
        for name in ("log_sigmoid", "hinge"):
            options, limits = {"shaping": name}, {"linear": None, "other": None}
            group.append(Case(name, "NegMMIOT", n, limits=limits, options=options))
            for c in (100.0, 300.0, 1000.0):
                more = {"options": options, "batch": "outlier", "versions": THIS}
                label = f"{name}, outlier, c = {c:g}"
                group.append(Case(label, "NegMMIOT", n, limits={name: 20.0}, c=c, **more))
        yield group


def processes(sizes: Sequence[int]) -> Groups:
    """One batch over several processes."""
    options = {"group": "world"}
    for n in sizes:
        more = {"options": options, "world": 2, "limits": {"other": 1.4}}
        yield [Case(f"{x}, 2 processes", x, n, **more) for x in ("NegMMIOT", "InfoNCE")]
    more = {"options": options, "world": 4, "once": True, "limits": {"memory": 0.4}}
    yield [Case("NegMMIOT, 4 processes", "NegMMIOT", max(sizes), **more)]


SECTIONS: dict[str, tuple[Callable[[Sequence[int]], Groups], tuple[int, ...]]] = {
    "easy": (easy, (256, 1024, 4096, 8192)),
    "clip": (clip, (1024, 4096)),
    "streamed": (streamed, (4096,)),
    "large": (large, (32768,)),
    "hard": (hard, (1024, 2048)),
    "shaped": (shaped, (512,)),
    "processes": (processes, (4096, 8192)),
}
