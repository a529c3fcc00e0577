"""How time and memory are measured: cases take turns, memory in a process of its own."""

import argparse
import json
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import tricouple as tc
from benchmarks import table, worker
from benchmarks.cases import CLASSES, Call, Case
from tricouple_lab import files, names

Row = dict[str, Any]  # what was measured of a case, or a note why not
Key = tuple[str, str]  # name of a case, and version
SECONDS = 3.0  # that the rounds of a case may take, unless their number is given
LONG = 5.0  # a call of so many seconds is not repeated
PEERS = "numpy", "pytorch-metric-learning", "jax", "ott-jax", "POT", "lightly", "open_clip_torch"


def say(text: str) -> None:
    """Say what runs, on one line of a terminal; drawn between the measurements."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(cases: Sequence[Case], workers: worker.Workers, rounds: int) -> dict[Key, Row]:
    """Return a row per case and version; a case that fails, or needs too much, has a note.

    First comes the memory, where a limit is about it: of a call in a fresh process after a small
    one. A call that takes long is not repeated; of others the times of turns count.
    """
    rows: dict[Key, Row] = {}
    turns: dict[Key, Callable[[], list[float]]] = {}

    def turn(version: str, case: Case) -> list[float]:
        if version == "other" and "memory_budget" in case.options:
            # 23ab974 keeps all of E or nothing, and exceeds such a budget: it streams.
            case = replace(case, options={"memory": "streamed"})
        return workers.ask(version, "time", case)["seconds"]

    for case, name in [(one, name) for one in cases for name in one.versions]:
        row = rows[case.name, name] = {"note": ""}
        say(f"N = {case.n}: {case.name}")
        needed, free = (one / 2**30 for one in (case.bytes(), worker.available()))
        if needed > free:
            row["note"] = f"skipped: may need {needed:.0f} GiB, {free:.0f} GiB are free"
            continue
        try:
            if any(key.startswith("memory") for key in case.limits):
                found = workers.ask(name, "memory", case)
                row |= {key: found[key] for key in ("peak_bytes", "extra_bytes")}
                row |= timed(found["seconds"])
            if row.get("seconds", 0.0) < LONG:
                row |= timed(turn(name, case))
                if row["seconds"] < LONG:
                    turns[case.name, name] = partial(turn, name, case)
        except RuntimeError as error:
            missing = "ModuleNotFoundError" in str(error)
            row["note"] = "not installed" if missing else f"failed: {error}"
    least = rounds or (5 if cases[0].n <= 2048 else 2)
    for key, seconds in in_turns(turns, least, 0 if rounds else SECONDS).items():
        rows[key] |= timed(seconds)
    return rows


def in_turns(
    turns: Mapping[Any, Callable[[], list[float]]], rounds: int, seconds: float = 0.0
) -> dict[Any, list[float]]:
    """Collect the durations of turns, each taken once before, in interleaved rounds.

    There are so many rounds, and more while each has not had so many seconds on average. A slow
    minute of the machine hits all of them. The order rotates.
    """
    durations: dict[Any, list[float]] = {name: [] for name in turns}
    order, done, end = deque(turns), 0, time.monotonic() + seconds * len(turns)
    while turns and (done < rounds or time.monotonic() < end):
        for name in order:
            say(str(name))
            durations[name] += turns[name]()
        order.rotate(-1)
        done += 1
    return durations


def timed(durations: Sequence[float]) -> Row:
    """Best and median: noise only adds time."""
    best, middle = min(durations), median(durations)
    return {"seconds": best, "median_seconds": middle, "calls": len(durations)}


# --- training steps: encoder, loss, both gradients and the optimiser; only the loss differs -------

STEP_LOSSES: dict[str, Mapping[str, Any]] = {
    "InfoNCE": {"name": "infonce"},
    "NegMMIOT": {"name": "neg_mmiot"},
    "NegMMIOT log-sigmoid": {"name": "neg_mmiot", "shaping": "log_sigmoid"},
    "NegMMIOT hinge": {"name": "neg_mmiot", "shaping": "hinge"},
    "PushPull": {"name": "pushpull"},
    "IOT": {"name": "iot"},
}


def step_ratios(
    backbones: Sequence[str], losses: Sequence[str] = tuple(STEP_LOSSES), *, batch_size: int = 0,
    image_size: int = 32, rounds: int = 40, sharpness: float = 10.0,
) -> pd.DataFrame:  # fmt: skip
    """Time whole training steps on random images, the losses of a backbone in turns.

    Args:
        backbones: Of ``tricouple train`` (``resnet18``), or ``clip_`` and a model (``clip_small``).
        losses: Of ``STEP_LOSSES``, or names of ``tricouple train``.
        batch_size: By default 256, of CLIP 64.
        image_size: Width and height of the images; CLIP has its own.
        rounds: Steps of each.
        sharpness: Of ``STEP_LOSSES``.

    Returns:
        A row per backbone and loss: ``backbone, loss, batch_size, seconds`` (of the best step),
        ``median_seconds, calls, ratio`` (to InfoNCE's best; without InfoNCE to the first loss's).
    """
    base = next((name for name in losses if name.lower() == "infonce"), losses[0])
    rows = []
    for backbone in backbones:
        torch.manual_seed(0)
        n = batch_size or (64 if backbone.startswith("clip_") else 256)
        encoded = encoder(backbone, n, image_size)
        steps = {name: training_step(name, *encoded, sharpness) for name in losses}
        for step in steps.values():
            step()
        found = in_turns({key: partial(durations, step) for key, step in steps.items()}, rounds)
        for loss, seconds in found.items():
            row = {"backbone": backbone, "loss": loss, "batch_size": n, **timed(seconds)}
            rows.append(row | {"ratio": min(seconds) / min(found[base])})
    return pd.DataFrame(rows)


def durations(step: Call) -> list[float]:
    """The seconds of one call."""
    start = time.perf_counter()
    step()
    return [time.perf_counter() - start]


def encoder(
    backbone: str, n: int, side: int
) -> tuple[torch.nn.Module, Callable[[], list[Tensor]], Tensor]:
    """Return a model, what encodes a random batch of images or of pairs, and labels."""
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
    network = backbones.build(Backbone(name=backbone, head_dim=CLASSES), 3, side, CLASSES)
    images, labels = torch.rand(n, 3, side, side), torch.randint(CLASSES, (n,))
    return network, lambda: [network(images)], labels


def training_step(
    name: str, model: torch.nn.Module, encode: Callable[[], list[Tensor]], labels: Tensor,
    sharpness: float = 10.0,
) -> Call:  # fmt: skip
    """Return a step with a loss of ``STEP_LOSSES``, or of ``tricouple train`` as it is there."""
    from tricouple_lab.tasks.base import make_loss

    known = {key: {"name": key, **row.defaults} for key, row in names.LOSSES.items()}
    known |= {key: {**row, "sharpness": sharpness} for key, row in STEP_LOSSES.items()}
    loss = make_loss(known[names.choose("loss", name, known)])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        embeddings = encode()
        criterion = tc.BothDirections(loss) if len(embeddings) == 2 else loss
        criterion(*embeddings, labels).backward()
        optimiser.step()

    return step


# --- what is stored -------------------------------------------------------------------------------


def publish(
    args: argparse.Namespace, about: Row, key: str, rows: Iterable[Row], command: Sequence[str]
) -> None:
    """Read a run, or measure its rows; print its tables, and write them as Markdown on request."""
    if args.read:
        run = table.read(args.read)
    else:
        run = {**about, key: [], "provenance": circumstances(command)}
        store(run, key, rows, args.out)
    for caption, found in table.tables(run).items():
        print(f"{caption}\n{found.to_string(index=False)}\n")
    print("\n".join(table.notes(run)))
    if args.markdown:
        files.write_text(args.markdown, table.markdown(run))
        print(f"Tables: {args.markdown}")


def store(run: Row, key: str, rows: Iterable[Row], path: Path) -> None:
    """Write the file after every row: an interrupted run keeps what it has."""
    with files.written(path):  # before minutes of measuring
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    try:
        for row in rows:
            run[key].append(row)
            files.write_text(path, json.dumps(run, indent=1) + "\n")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{path} has what was measured") from None


def circumstances(command: Sequence[str]) -> Row:
    """Return what is needed to judge or repeat a run that begins: sources, machine, load."""
    facts = files.provenance()
    for name in PEERS:
        with suppress(PackageNotFoundError):
            facts["versions"] = facts["versions"] | {name: version(name)}
    return facts | {
        "command": shlex.join(command),
        "cpu": worker.linux("cpuinfo", r"model name\s*: (.*)", facts["machine"]),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "compiled": tc.ot.compiled(),
        "load": os.getloadavg()[0],
    }
