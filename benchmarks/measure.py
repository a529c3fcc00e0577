"""How time and memory are measured: contenders take turns, memory in a process of its own."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import shlex
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import tricouple as tc
from benchmarks import memory
from benchmarks.contenders import BY_NAME, CONTENDERS, HINGE, SMOOTH, STEP, Call
from benchmarks.problem import Problem, make_batch
from tricouple_lab import files, names

Row = dict[str, Any]  # contender, task, size, and what was measured or a note why not
SMALLEST_WEIGHED = 1024  # smaller matrices are lost in the pages of an allocator
LONG = 60.0  # a call of so many seconds is not repeated
FAILURES = (RuntimeError, MemoryError)  # of a contender at one size; the run goes on
PEERS = "numpy", "pytorch-metric-learning", "jax", "ott-jax", "POT", "lightly", "open_clip_torch"


@dataclass(frozen=True)
class Effort:
    """Sizes and effort of a run."""

    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    largest_cubic: int = 256
    rounds: int = 5
    seconds_per_round: float = 0.3
    memory: bool = True
    only: tuple[str, ...] = ()  # patterns of names; none: all
    processes: tuple[int, ...] = (2, 4)  # of a batch that several share
    dims: tuple[int, ...] = (128, 512)  # of such a batch
    budget: float = math.inf  # seconds, after which a contender has no more turns

    def matches(self, name: str) -> bool:
        """Whether one of the patterns, if there are any, is that of a name."""
        return not self.only or any(fnmatch(name, pattern) for pattern in self.only)


QUICK = Effort((32, 64), rounds=2, seconds_per_round=0.02, memory=False)


def say(text: str) -> None:
    """Say what runs, on one line of a terminal; drawn between the measurements."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(effort: Effort, problem: Problem) -> Iterator[Row]:
    """Yield a row per size and contender; a missing or failing one is a row with a note."""
    warnings.filterwarnings("ignore", message='gradient="implicit"')  # plans need not converge
    for size in effort.sizes:
        batch, rows, steps = make_batch(size, problem), {}, {}
        for contender in CONTENDERS:
            largest = effort.largest_cubic if contender.cubic else contender.largest
            name = contender.name
            if not (effort.matches(name) and contender.smallest <= size <= largest):
                continue
            say(f"N = {size}: preparing {name}")
            row = rows[name] = {"contender": name, "task": contender.task, "size": size}
            row["note"] = contender.obstacle(size, problem)
            if row["note"]:
                continue
            try:
                step = contender.prepare(batch, problem)
                first = time_call(step)
            except FAILURES as error:
                row["note"] = f"failed: {error}"
                continue
            row |= timed([first])
            if first <= LONG:
                steps[name] = step
        for name, found in time_together(steps, effort).items():
            rows[name] |= timed(found)
        for name, row in rows.items():
            weighed = effort.memory and "seconds" in row
            if weighed and (size >= SMALLEST_WEIGHED or BY_NAME[name].cubic):
                say(f"N = {size}: memory of {name}")
                try:
                    row |= measure_memory(name, size, problem)
                except FAILURES as error:
                    row["note"] = f"memory not measured: {error}"
            yield row


def time_call(step: Call) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def time_together(
    steps: Mapping[str, Call], effort: Effort, clock: Callable[[Call], float] = time_call
) -> dict[str, list[float]]:
    """Time steps, each called once before, in interleaved rounds; return their durations.

    In each round every step has a turn of several calls: a slow minute of the machine hits all of
    them. The order rotates. The first call of a turn finds caches and thread pools as the previous
    step left them; it counts only if it fills the turn alone.
    """
    durations: dict[str, list[float]] = {name: [] for name in steps}
    order = deque(steps)
    gc.collect()
    gc.disable()
    try:
        for _ in range(effort.rounds):
            for name in order:
                if sum(durations[name]) < effort.budget:
                    say(name)
                    first = clock(steps[name])
                    calls = int(effort.seconds_per_round / first)
                    durations[name] += [clock(steps[name]) for _ in range(calls)] or [first]
            order.rotate(-1)
    finally:
        gc.enable()
    return durations


def timed(durations: Sequence[float]) -> Row:
    """Best and median: noise only adds time."""
    best, middle = min(durations), median(durations)
    return {"seconds": best, "median_seconds": middle, "calls": len(durations)}


def measure_memory(contender: str, size: int, problem: Problem) -> Row:
    """Peak and extra memory of a call in a fresh process that warms up on a small batch.

    Raises:
        RuntimeError: If the process failed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(peak_of, contender, size, problem).result()


def peak_of(contender: str, size: int, problem: Problem) -> Row:
    """Do in this process what ``measure_memory`` asks for."""
    prepare = BY_NAME[contender].prepare
    prepare(make_batch(32, problem), problem)()
    return memory.peak_memory_of(prepare(make_batch(size, problem), problem))


# --- training steps: encoder, loss, both gradients and the optimiser; only the loss differs -------

STEP_LOSSES: dict[str, Mapping[str, Any]] = {
    "InfoNCE": {"name": "infonce"},
    "NegMMIOT": {"name": "neg_mmiot"},
    SMOOTH: {"name": "neg_mmiot", "shaping": "log_sigmoid"},
    HINGE: {"name": "neg_mmiot", "shaping": tc.shaping.Hinge(margin=0.5)},
    "PushPull": {"name": "pushpull"},
    "IOT": {"name": "iot"},
}


def step_ratios(
    backbones: Sequence[str], losses: Sequence[str] = tuple(STEP_LOSSES), **options: Any
) -> pd.DataFrame:
    """Time whole training steps on random images, the losses of a backbone in turns.

    Args:
        backbones: Of ``tricouple train`` (``resnet18``), or ``clip_`` and a model (``clip_small``).
        losses: Of ``STEP_LOSSES``, or names of ``tricouple train``, with the paper's arguments.
        **options: Those of ``measure_steps``. ``setting``: ``scl``, random labels, or ``ucl``, two
            views per image; CLIP always has pairs. ``batch_size``: by default 256, of CLIP 64.

    Returns:
        A row per backbone and loss: ``backbone, loss, batch_size, seconds`` (of the best step),
        ``median_seconds, calls, ratio`` (to InfoNCE's best; without InfoNCE to the first loss's).
    """
    found = pd.DataFrame(measure_steps(backbones, losses, **options))
    return found.drop(columns="task").rename(columns={"contender": "loss", "size": "batch_size"})


def measure_steps(
    backbones: Sequence[str], losses: Sequence[str] = tuple(STEP_LOSSES), *, setting: str = "scl",
    batch_size: int = 0, image_size: int = 32, classes: int = 10, rounds: int = 40, seed: int = 0,
) -> Iterator[Row]:  # fmt: skip
    """Yield rows of ``step_ratios``."""
    base = next((name for name in losses if name.lower() == "infonce"), losses[0])
    for backbone in backbones:
        torch.manual_seed(seed)
        n = batch_size or (64 if backbone.startswith("clip_") else 256)
        model, encode, labels = encoder(backbone, setting, n, image_size, classes)
        steps = {name: training_step(name, model, encode, labels) for name in losses}
        for step in steps.values():
            step()
        found = time_together(steps, Effort(rounds=rounds, seconds_per_round=0.0))
        for name, durations in found.items():
            row = {"contender": name, "task": STEP, "size": n, "backbone": backbone}
            yield {**row, **timed(durations), "ratio": min(durations) / min(found[base])}


def encoder(
    backbone: str, setting: str, n: int, side: int, classes: int
) -> tuple[torch.nn.Module, Callable[[], list[Tensor]], Tensor]:
    """Return a model, what encodes a random batch of one set or two, and labels."""
    from tricouple_lab.config.schema import Backbone
    from tricouple_lab.models import backbones, clip

    if backbone.startswith("clip_"):
        name = names.choose("model", backbone.removeprefix("clip_"), clip.TOWERS)
        model, side = clip.build_clip(name), clip.image_side(name)
        pixels = clip.normalise(torch.rand(n, 3, side, side))
        tokens = torch.randint(1, 999, (n, clip.TOWERS[name].text["context_length"]))
        towers = (model.encode_image, pixels), (model.encode_text, tokens)
        return model, lambda: [tower(one) for tower, one in towers], torch.arange(n)
    names.choose("backbone", backbone, names.BACKBONES)
    network = backbones.build(Backbone(name=backbone, head_dim=classes), 3, side, classes)
    labels = torch.randint(classes, (n,)) if setting == "scl" else torch.arange(n).repeat(2)
    images = torch.rand(len(labels), 3, side, side)
    return network, lambda: [network(images)], labels


def training_step(
    name: str, model: torch.nn.Module, encode: Callable[[], list[Tensor]], labels: Tensor
) -> Call:
    """Return a step with a loss of ``STEP_LOSSES``, or of ``tricouple train``, the paper's."""
    from tricouple_lab.tasks.base import make_loss

    settings = STEP_LOSSES.get(name)
    if settings is None:
        row = names.LOSSES[names.choose("loss", name, names.LOSSES)]
        settings = {"name": name, **row.defaults, **row.paper}
    loss: Any = make_loss(settings)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        embeddings = encode()
        criterion = tc.BothDirections(loss) if len(embeddings) == 2 else loss
        criterion(*embeddings, labels).backward()
        optimiser.step()

    return step


def circumstances(words: Sequence[str]) -> dict[str, Any]:
    """Return what is needed to judge or repeat a run that begins: sources, machine, load."""
    facts = files.provenance()
    for name in PEERS:
        with suppress(PackageNotFoundError):
            facts["versions"] = facts["versions"] | {name: version(name)}
    return facts | {
        "command": shlex.join(["tricouple", "bench", *words]),
        "cpu": memory.linux("cpuinfo", r"model name\s*: (.*)", facts["machine"]),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "compiled": tc.ot.compiled(),
        "load": os.getloadavg()[0],
    }
