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
    budget: float | None = None  # memory_budget in N×N float32 matrices
    versions: tuple[str, ...] = ("this", "other")
    world: int = 1  # processes that share the batch
    once: bool = False  # too slow for rounds: timed by the call whose memory is measured


Groups = Iterator[list[Case]]  # cases of a group are timed in turns
LOSSES = "InfoNCE", "IOT", "PushPull", "NegMMIOT"
THIS = ("this",)


def easy(sizes: Sequence[int], _: bool) -> Groups:
    """Random batches within one set and across two."""
    for n in sizes:
        time_limit = 1.3 if n <= 256 else 1.0 if n < 4096 else 1.4
        limits = {"other": time_limit} | ({"memory/other": 1.3} if n >= 4096 else {})
        yield [Case(name, name, n, limits=limits) for name in LOSSES]
    for n in sizes:
        if 1024 <= n <= 4096:
            limits = {"other": 1.0} | ({"memory/other": 1.3} if n >= 4096 else {})
            yield [Case(f"{name}, two sets", name, n, sets="two", limits=limits) for name in LOSSES]


def clip(sizes: Sequence[int], _: bool) -> Groups:
    """Both directions beside ClipLoss."""
    targets = {"InfoNCE": 0.9, "NegMMIOT": 1.1, "PushPull": 1.2}
    for n in sizes:
        group = [Case("ClipLoss", "ClipLoss", n, 512, sets="both", versions=THIS)]
        for name, target in targets.items():
            limits = {"ClipLoss": target, "other": None}
            group.append(Case(f"{name}, both directions", name, n, 512, limits, sets="both"))
        yield group


def streamed(sizes: Sequence[int], full: bool) -> Groups:
    """Nothing kept, and some rows of E kept."""
    nothing = {"memory": "streamed"}
    for n in sizes:
        if n >= 16384:
            limits, versions = (
                {"memory": 1.3 * 2**30 / (4 * n * n)},
                Case.versions if full else THIS,
            )
            more = {"options": nothing, "versions": versions, "once": True}
            yield [Case("NegMMIOT, streamed", "NegMMIOT", n, limits=limits, **more)]
            continue
        limits, some = {"other": 1.4, "memory": None}, {"other": 1.4, "memory": 0.99}
        losses = "NegMMIOT", "PushPull"
        # Kernel.rows keeps tiles in half of the budget; E is stored whole from 1 N×N on.
        yield [
            *(Case(f"{x}, streamed", x, n, limits=limits, options=nothing) for x in losses),
            *(Case(f"{x}, budget 0.99 N²", x, n, limits=some, budget=0.99) for x in losses),
        ]


def across_streamed(sizes: Sequence[int], full: bool) -> Groups:
    """Memory across two sets."""
    more = {"sets": "two", "options": {"memory": "streamed"}, "once": True}
    versions = Case.versions if full else THIS
    for n in sizes:
        limits = {"memory": 0.6}
        yield [Case("NegMMIOT, two sets", "NegMMIOT", n, 512, limits, versions=versions, **more)]


def hard(sizes: Sequence[int], _: bool) -> Groups:
    """Batches on which sweeps lose digits, over the easy batch of the same version."""
    kinds = [("outlier", 10.0), ("outlier", 100.0), ("collapsed", 10.0), ("duplicated", 10.0)]
    kinds += [("easy", 100.0), ("easy", 300.0), ("easy", 1000.0)]
    for n in sizes:
        group = [Case("easy", "NegMMIOT", n)]
        for batch, c in kinds:
            limits = {"easy": 3.0 if batch == "outlier" else None, "other": None}
            group.append(
                Case(f"{batch}, c = {c:g}", "NegMMIOT", n, limits=limits, c=c, batch=batch)
            )
        yield group


def shaped(sizes: Sequence[int], _: bool) -> Groups:
    """Other cost functions over the linear one, and their outliers."""
    for n in sizes:
        group = [Case("linear", "NegMMIOT", n)]
        for name, limit in (("log_sigmoid", 20.0), ("hinge", 10.0)):
            options, limits = {"shaping": name}, {"linear": limit, "other": None}
            group.append(Case(name, "NegMMIOT", n, limits=limits, options=options))
            for c in (100.0, 300.0, 1000.0):
                more = {"options": options, "batch": "outlier", "versions": THIS}
                label = f"{name}, outlier, c = {c:g}"
                group.append(Case(label, "NegMMIOT", n, limits={name: 20.0}, c=c, **more))
        yield group


def processes(sizes: Sequence[int], _: bool) -> Groups:
    """One batch over several processes."""
    options = {"group": "world"}
    for n in sizes:
        more = {"options": options, "world": 2, "limits": {"other": 1.4}}
        yield [Case(f"{x}, 2 processes", x, n, **more) for x in ("NegMMIOT", "InfoNCE")]
    more = {"options": options, "world": 4, "once": True, "limits": {"memory": 0.4}}
    yield [Case("NegMMIOT, 4 processes", "NegMMIOT", max(sizes), **more)]


SECTIONS: dict[str, tuple[Callable[[Sequence[int], bool], Groups], tuple[int, ...]]] = {
    "easy": (easy, (256, 1024, 4096, 8192)),
    "clip": (clip, (1024, 4096)),
    "streamed": (streamed, (4096, 32768)),
    "across-streamed": (across_streamed, (16384,)),
    "hard": (hard, (1024, 2048)),
    "shaped": (shaped, (512,)),
    "processes": (processes, (4096, 8192)),
}
