"""Sections of ``versions.py``: groups of cases that are timed in turns, with the targets."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.cases import Case

Groups = Iterator[list[Case]]
LOSSES = "InfoNCE", "IOT", "PushPull", "NegMMIOT"
THIS: dict[str, Any] = {"versions": ("this",)}
STREAMED: dict[str, Any] = {"options": {"memory": "streamed"}, "matrices": 0.5}


def easy(sizes: Sequence[int]) -> Groups:
    """InfoNCE, IOT, PushPull, NegMMIOT on random batches, one set or two, over the other."""
    for n in sizes:
        memory = {"memory / other": 1.3} if n >= 4096 else {}
        limits = {"time / other": 1.3 if n <= 256 else 1.0 if n < 4096 else 1.4} | memory
        yield [Case(name, name, n, limits=limits) for name in LOSSES]
        if 1024 <= n <= 4096:
            limits = {"time / other": 1.0} | memory
            yield [Case(f"{name}, two sets", name, n, sets="two", limits=limits) for name in LOSSES]


def peers(sizes: Sequence[int]) -> Groups:
    """NegMMIOT over InfoNCE in plain PyTorch and SupConLoss; classes of many sizes, c = 10."""
    plain, other = "InfoNCE (plain PyTorch)", "SupConLoss (PML)"
    for n in sizes:
        more = THIS | {"batch": "classes"}
        limit = {256: 2.5, 1024: 1.5, 4096: 0.65}.get(n)
        limits = {f"time over {plain}": limit, f"time over {other}": 1.0}
        yield [Case(plain, "plain_info_nce", n, **more), Case(other, "sup_con", n, **more),
               Case("NegMMIOT", "NegMMIOT", n, limits=limits, **more)]  # fmt: skip


def growth(sizes: Sequence[int]) -> Groups:
    """Times as a power of N, from the smallest size to the largest."""
    for name in LOSSES:
        group = [Case(f"{name}, N = {n}", name, n, **THIS) for n in sizes[:-1]]
        yield [*group, Case(name, name, sizes[-1], limits={"growth, N^…": 2.1}, **THIS)]


def clip(sizes: Sequence[int]) -> Groups:
    """Both directions across two sets, d = 512, over open_clip's ClipLoss."""
    for n in sizes:
        group = [Case("ClipLoss", "clip_loss", n, 512, sets="both", **THIS)]
        for name, target in {"InfoNCE": 0.9, "NegMMIOT": 1.1, "PushPull": 1.2}.items():
            limits = {"time over ClipLoss": target, "time / other": None}
            group.append(Case(f"{name}, both directions", name, n, 512, limits, sets="both"))
        yield group


def streamed(sizes: Sequence[int]) -> Groups:
    """Nothing kept, and half of E kept by a budget, over the other version."""
    for n in sizes:
        # Beside E the budget has room for tiles, histories and embeddings.
        half = {"memory_budget": int((0.9 + 2500 / n) * 4 * n**2)}
        kept = {"limits": {"time / other": 1.0}, "options": half}
        nothing = STREAMED | {"limits": {"time / other": 1.5, "memory, N²": None}}
        ways = {"nothing kept": nothing, "half kept": kept}
        yield [Case(f"{x}, {way}", x, n, **how) for way, how in ways.items() for x in LOSSES[:1:-1]]


def large(sizes: Sequence[int]) -> Groups:
    """Memory of streamed batches: 1.3 GiB within one set of 32768, 0.6 N×N across two of half."""
    for n in sizes:
        more, limits = THIS | STREAMED, {"memory, N²": 1.3 * 2**30 / (4 * n * n)}
        yield [Case("NegMMIOT, streamed", "NegMMIOT", n, limits=limits, **more)]
        limits = {"memory, N²": 0.6}
        yield [Case("NegMMIOT, two sets", "NegMMIOT", n // 2, 512, limits, sets="two", **more)]


def hard(sizes: Sequence[int]) -> Groups:
    """Batches on which sweeps lose digits, over the easy batch of the same version."""
    kinds = [("outlier", 10.0), ("outlier", 100.0), ("collapsed", 10.0), ("duplicated", 10.0)]
    kinds += [("easy", 100.0), ("easy", 300.0), ("easy", 1000.0)]
    for n in sizes:
        group = [Case("easy", "NegMMIOT", n)]
        for batch, c in kinds:
            limit = 3.0 if batch == "outlier" else 12.0 if c == 1000 else None
            limits = {"time over easy": limit, "time / other": None}
            about = {"limits": limits, "c": c, "batch": batch}
            group.append(Case(f"{batch}, c = {c:g}", "NegMMIOT", n, **about))
        yield group


def shaped(sizes: Sequence[int]) -> Groups:
    """Other cost functions over the linear one, and their outliers over their easy batch."""
    for n in sizes:
        group = [Case("linear", "NegMMIOT", n)]
        for name, limit in {"log_sigmoid": 20.0, "hinge": 10.0}.items():
            own = {"options": {"shaping": name}}
            limits = {"time over linear": limit, "time / other": None}
            group.append(Case(name, "NegMMIOT", n, limits=limits, **own))
            own |= THIS | {"batch": "outlier", "limits": {f"time over {name}": 20.0}}
            group += [Case(f"{name}, outlier, c = {c:g}", "NegMMIOT", n, c=c, **own)
                      for c in (100.0, 300.0, 1000.0)]  # fmt: skip
        yield group


def processes(sizes: Sequence[int]) -> Groups:
    """2 processes with 1 thread each, group="world"; memory per rank of 4 processes."""
    for n in sizes:
        more = {"world": 2, "limits": {"time / other": 1.4}}
        yield [Case(f"{x}, 2 processes", x, n, **more) for x in ("NegMMIOT", "InfoNCE")]
    more = {"world": 4, "limits": {"memory, N²": 0.4}}
    yield [Case("NegMMIOT, 4 processes", "NegMMIOT", max(sizes), **more)]


SECTIONS: dict[str, tuple[Callable[[Sequence[int]], Groups], tuple[int, ...]]] = {
    "easy": (easy, (256, 1024, 4096, 8192)),
    "peers": (peers, (256, 1024, 4096)),
    "growth": (growth, (1024, 2048, 4096, 8192)),
    "clip": (clip, (1024, 4096)),
    "streamed": (streamed, (4096,)),
    "large": (large, (32768,)),
    "hard": (hard, (1024, 2048)),
    "shaped": (shaped, (512,)),
    "processes": (processes, (4096, 8192)),
}
