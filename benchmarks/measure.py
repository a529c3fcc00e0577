"""How time and memory are measured: contenders take turns, memory in a process of its own."""

from __future__ import annotations

import gc
import json
import math
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import tricouple as tc
from benchmarks import memory
from benchmarks.contenders import (
    BY_NAME,
    CONTENDERS,
    HINGE,
    SMOOTH,
    STEP,
    Call,
    Contender,
    installed,
)
from benchmarks.problem import Problem, make_batch
from tricouple_lab import files, names

Row = dict[str, Any]  # contender, task, size, and what was measured or a note why not
# Optimiser, what encodes one set or two, labels.
Encoder = tuple[torch.optim.Optimizer, Callable[[], list[Tensor]], Tensor]
Say = Callable[[str], None]  # is told what runs
ROOT = Path(__file__).resolve().parents[1]
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

    def meets(self, contender: Contender, size: int) -> bool:
        """Whether this contender runs at this size."""
        largest = self.largest_cubic if contender.cubic else contender.largest
        return matches(contender.name, self.only) and contender.smallest <= size <= largest

    def weighs(self, contender: Contender, size: int) -> bool:
        """Whether the memory of a contender that runs is measured."""
        return self.memory and (contender.cubic or size >= SMALLEST_WEIGHED)


QUICK = Effort(sizes=(32, 64), rounds=2, seconds_per_round=0.02, memory=False)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns, if there are any, is that of a name."""
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def measure(effort: Effort, problem: Problem, say: Say = lambda text: None) -> Iterator[Row]:
    """Yield a row per size and contender; a missing or failing one is a row with a note."""
    for size in effort.sizes:
        for row in time_size(size, effort, problem, say):
            name = row["contender"]
            if "seconds" in row and effort.weighs(BY_NAME[name], size):
                say(f"N = {size}: memory of {name}")
                try:
                    row |= measure_memory(name, size, problem)
                except FAILURES as error:
                    row["note"] = f"memory not measured: {error}"
            yield row


def time_size(size: int, effort: Effort, problem: Problem, say: Say) -> list[Row]:
    """Time all contenders of one size in interleaved rounds."""
    batch = make_batch(size, problem)
    rows: dict[str, Row] = {}
    steps: dict[str, Call] = {}
    with warnings.catch_warnings():  # plans need not converge to be timed
        warnings.filterwarnings("ignore", message='gradient="implicit"')
        for contender in CONTENDERS:
            if not effort.meets(contender, size):
                continue
            name, note = contender.name, obstacle_to(contender, size, problem)
            rows[name] = {"contender": name, "task": contender.task, "size": size, "note": note}
            if note:
                continue
            say(f"N = {size}: preparing {name}")
            try:
                step = contender.prepare(batch, problem)
                first = time_call(step)
            except FAILURES as error:
                rows[name]["note"] = f"failed: {error}"
                continue
            if first > LONG:
                rows[name] |= timed([first])
            else:
                steps[name] = step
        turns = effort.rounds, effort.seconds_per_round
        for name, found in time_together(steps, *turns, lambda n: say(f"N = {size}: {n}")).items():
            rows[name] |= timed(found)
    return list(rows.values())


def time_call(step: Call) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def time_together(
    steps: Mapping[str, Call], rounds: int, seconds_per_round: float,
    say: Say = lambda name: None, clock: Callable[[Call], float] = time_call,
    budget: float = math.inf,
) -> dict[str, list[float]]:  # fmt: skip
    """Time steps, each called once before, in interleaved rounds; return their durations.

    In each round every step has a turn of several calls: a slow minute of the machine hits all of
    them. The order rotates. The first call of a turn finds caches and thread pools as the previous
    step left them; it counts only if it fills the turn alone. A step that has taken ``budget``
    seconds has no more turns.
    """
    durations: dict[str, list[float]] = {name: [] for name in steps}
    order = deque(steps)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order:
                if sum(durations[name]) < budget:
                    say(name)
                    first = clock(steps[name])
                    calls = int(seconds_per_round / first)
                    durations[name] += [clock(steps[name]) for _ in range(calls)] or [first]
            order.rotate(-1)
    finally:
        gc.enable()
    return durations


def timed(durations: Sequence[float]) -> Row:
    """Best and median: noise only adds time."""
    best, middle = min(durations), median(durations)
    return {"seconds": best, "median_seconds": middle, "calls": len(durations)}


def obstacle_to(contender: Contender, size: int, problem: Problem) -> str:
    """Return why a contender cannot run at a size; empty if it can."""
    if not installed(contender.module):
        return "not installed"
    needed, free = contender.bytes_at_most(size, problem), memory.available_bytes()
    if needed <= free:
        return ""
    return f"skipped: may need {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free"


# --- memory: of a fresh process that warms up on a small batch, the peak during one call ----------


def measure_memory(contender: str, size: int, problem: Problem) -> Row:
    """Peak and extra memory of a call in a fresh process.

    Raises:
        RuntimeError: If the process failed, with its last line.
    """
    request = json.dumps([contender, size, asdict(problem)])
    command = [sys.executable, "-m", "benchmarks.measure", request]
    env = os.environ | child()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child() -> dict[str, str]:
    """Return what the environment of a process needs to import this folder."""
    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def answer(contender: str, size: int, problem: Mapping[str, Any]) -> Row:
    """Do in this process what ``measure_memory`` asks for."""
    fixed, prepare = Problem(**problem), BY_NAME[contender].prepare
    prepare(make_batch(32, fixed), fixed)()
    return memory.peak_memory_of(prepare(make_batch(size, fixed), fixed))


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
        **options: ``setting``: ``scl``, random labels, or ``ucl``, two views per image; CLIP always
            has pairs. ``batch_size``: images or pairs; by default 256, of CLIP 64. ``image_size``,
            32; ``classes``: labels and dimensions of the embedding, 10; ``rounds``: steps per loss,
            40; ``seed``; ``say``: is told what runs.

    Returns:
        A row per backbone and loss: ``backbone, loss, batch_size, seconds`` (of the best step),
        ``median_seconds, calls, ratio`` (to InfoNCE's best; without InfoNCE to the first loss's).
    """
    found = pd.DataFrame(measure_steps(backbones, losses, **options))
    return found.drop(columns="task").rename(columns={"contender": "loss", "size": "batch_size"})


def measure_steps(
    backbones: Sequence[str], losses: Sequence[str] = tuple(STEP_LOSSES), *, setting: str = "scl",
    batch_size: int | None = None, image_size: int = 32, classes: int = 10, rounds: int = 40,
    seed: int = 0, say: Say = lambda text: None,
) -> Iterator[Row]:  # fmt: skip
    """Yield rows of ``step_ratios``."""
    losses_of = {name: step_loss(name) for name in losses}
    for backbone in backbones:
        torch.manual_seed(seed)
        clip = backbone.startswith("clip_")
        n = batch_size or (64 if clip else 256)
        about = backbone, setting, n, image_size, classes
        encoder = _pairs(backbone, n) if clip else _images(*about)
        steps = {name: _step(loss, *encoder) for name, loss in losses_of.items()}
        for step in steps.values():
            step()
        say(f"steps of {backbone}")
        found = time_together(steps, rounds, 0.0)
        base = next((name for name in losses if name.lower() == "infonce"), losses[0])
        for name, durations in found.items():
            row = {"contender": name, "task": STEP, "size": n, "backbone": backbone}
            yield {**row, **timed(durations), "ratio": min(durations) / min(found[base])}


def step_loss(name: str) -> nn.Module:
    """Return a loss of ``STEP_LOSSES``, or of ``tricouple train`` as the paper has it."""
    from tricouple_lab.tasks.base import make_loss

    if name in STEP_LOSSES:
        return make_loss(STEP_LOSSES[name])
    row = names.LOSSES[names.choose("loss", name, names.LOSSES)]
    return make_loss({"name": name, **row.defaults, **row.paper})


def _images(backbone: str, setting: str, n: int, side: int, classes: int) -> Encoder:
    from tricouple_lab.config.schema import Backbone
    from tricouple_lab.models.backbones import build

    names.choose("backbone", backbone, names.BACKBONES)
    encoder = build(Backbone(name=backbone, head_dim=classes), 3, side, classes)
    ucl = setting == "ucl"
    images = torch.rand((1 + ucl) * n, 3, side, side)
    labels = torch.arange(n).repeat(2) if ucl else torch.randint(classes, (n,))
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
    return optimiser, lambda: [encoder(images)], labels


def _pairs(backbone: str, n: int) -> Encoder:
    from tricouple_lab.models import clip

    name = names.choose("model", backbone.removeprefix("clip_"), clip.TOWERS)
    model, side = clip.build_clip(name), clip.image_side(name)
    images = clip.normalise(torch.rand(n, 3, side, side))
    tokens = torch.randint(1, 999, (n, clip.TOWERS[name].text["context_length"]))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return (
        optimiser,
        lambda: [model.encode_image(images), model.encode_text(tokens)],
        torch.arange(n),
    )


def _step(
    loss: nn.Module, optimiser: Any, encode: Callable[[], list[Tensor]], labels: Tensor
) -> Call:
    both = tc.BothDirections(loss)  # type: ignore[arg-type]

    def step() -> None:
        optimiser.zero_grad()
        embeddings = encode()
        (both if len(embeddings) == 2 else loss)(*embeddings, labels).backward()
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


if __name__ == "__main__":
    print(json.dumps(answer(*json.loads(sys.argv[1]))))
