"""``make hostile``: what must hold under pressure, too long for the tests. Under five minutes.

========  ==========================================================================================
grid      degenerate batches × losses × sharpness × dtypes × gradients × storage against the dense
          reference, value and gradient
kill      trainings that are killed (SIGKILL), and interrupted (Ctrl-C) at ten moments with one calm
          line each, continue to the numbers of whole ones
address   the C code under the address and undefined-behaviour sanitizers of gcc, through tests/ot
memory    3000 steps of every loss with a coupling leave the process as large as 300 do
========  ==========================================================================================

Prints a table; the exit code is 1 if anything does not hold. ``hostile.py grid`` runs one part.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import normalize

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

import tricouple  # noqa: E402
from baseline_reference import loop_dbot, loop_inva_spread  # noqa: E402
from batches import DENSE, KINDS, batch, reference, scales, with_gradient  # noqa: E402
from conftest import LOSSES  # noqa: E402
from reference import dense_iot  # noqa: E402

ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
Outcome = tuple[bool, str]

# --- the grid ------------------------------------------------------------------------------------


# Errors of the value, relative above 1, and of the gradient, in units of c (of c² for a penalty).
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
HALF = (torch.bfloat16, torch.float16)
# Losses without a dense reference, their loops in float64, and the largest c that a loop follows.
PLAIN = {
    "InvaSpread": (lambda c: {"temperature": 1 / c}, loop_inva_spread, 1.0),
    "DBOT": (lambda c: {"regularisation": 1 / c}, loop_dbot, 10.0),
}
SHARPNESS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e4)


def calls(c: float, dtype: torch.dtype) -> Iterator[tuple[str, Callable, str, dict, dict, float]]:
    """Name, reference, gradient, options of both and of the loss alone, size of its forces."""
    for name, dense in DENSE.items():
        rules = ("unrolled",) if dtype in HALF or name == "InfoNCE" else ("unrolled", "envelope")
        edges = ("uniform",) if dtype in HALF or name == "InfoNCE" else ("uniform", "target")
        for memory, rule, edge in itertools.product(("matrices", "streamed"), rules, edges):
            plan = {} if name == "InfoNCE" else {"marginals": edge}
            own = {"memory": memory} | ({} if name == "InfoNCE" else {"gradient": rule})
            yield name, dense, rule, scales(name, c) | plan, own, c
        if c == 1 and dtype == torch.float64 and name != "InfoNCE":
            many = scales(name, c) | {"n_iters": 300}
            yield name, dense, "unrolled", many, {"gradient": "implicit"}, c
    penalty = {"epsilon": 1 / c, "uniformity": 0.5}
    yield "IOT", dense_iot, "unrolled", penalty, {}, c * max(1.0, c / 2)
    for name, (options, loop, largest) in PLAIN.items():
        if c <= largest:
            yield name, loop, "unrolled", options(c), {}, c


def grid() -> Outcome:
    """Every combination; what is wrong is printed, with how to see it again."""
    torch.set_num_threads(1)
    count, wrong = 0, []
    for kind, n, c, dtype in itertools.product(KINDS, (3, 9), SHARPNESS, TOLERANCE):
        if dtype in HALF and c > 100:
            continue  # gradients of half precision end at 65504
        there = batch(kind, n)
        unit = [part if part is None else normalize(part).to(dtype) for part in there.sides]
        there = replace(there, embeddings=unit[0], ref_emb=unit[1])
        truths: dict[str, tuple] = {}
        for name, function, rule, options, own, force in calls(c, dtype):
            if function not in DENSE.values() and there.own is not None:
                continue  # the loops know no ref_index
            if name == "InvaSpread" and there.ref_emb is not None:
                continue
            if n == 3 and own.get("gradient") == "implicit":
                continue  # three samples may take thousands of sweeps
            key = f"{name} {rule} {options}"
            if key not in truths:
                truths[key] = reference(there, function, rule, **options)
            where = f"{key} {own} kind={kind} n={n} c={c:g} {dtype}"
            count += 1
            leaf = there.to(dtype)
            try:
                value = leaf.loss(getattr(tricouple, name)(**options, **own))
            except ValueError as error:
                wrong.append(f"refused: {where}: {error}")
                continue
            if bad := misses(with_gradient(value, leaf.leaves), truths[key], force, dtype):
                wrong.append(f"{bad}: {where}")
    for line in wrong[:20]:
        print("  " + line, file=sys.stderr)
    return not wrong, f"{count} calls, {len(wrong)} of them wrong or refused"


def misses(found: tuple, wanted: tuple, force: float, dtype: torch.dtype) -> str:
    """What is wrong with a value and a gradient; empty if nothing."""
    (value, slope), (true_value, true_slope) = found, wanted
    if not (math.isfinite(value) and slope.isfinite().all()):
        return "not finite"
    error = abs(value - true_value) / max(1.0, abs(true_value))
    if error > TOLERANCE[dtype]:
        return f"value off by {error:.1e}"
    scale = max(force, float(true_slope.abs().max()))
    error = float((slope - true_slope).abs().max()) / scale
    return f"gradient off by {error:.1e}" if error > TOLERANCE[dtype] else ""


# --- kill −9, Ctrl-C and resume ------------------------------------------------------------------

TINY = {
    "train": [
        "data=digits", "setting=ucl", "scale=smoke", "backbone=resnet10_small", "backbone.width=4",
        "data.train_size=200", "data.image_size=8", "training.epochs=12",
        "evaluation.figures=false",
    ],
    "clip": [
        "scale=smoke", "data.train_size=96", "data.validation_size=40", "data.test_size=44",
        "training.epochs=12", "evaluation.figures=false",
    ],
}  # fmt: skip


def kill() -> Outcome:
    """Whole runs beside runs that are stopped again and again, ever later, and then finished."""
    with tempfile.TemporaryDirectory() as place:
        for command, moments in MOMENTS.items():
            runs = Path(place) / f"{command}-stopped"
            for name, (when, how) in moments.items():
                code, said = stopped(command, runs, when, how)
                calm = re.fullmatch(r"interrupted: the same command .*\n", said)
                if not (code == 130 and calm if how == PRESS else code == -how):
                    return False, f"{command} {name}: exit code {code}: {said[-500:]!r}"
            whole = results(finish(command, Path(place) / f"{command}-whole"))
            if results(finish(command, runs)) != whole:
                return False, f"{command} ends in other numbers"
    counts = [f"{len(moments)} stops of {command}" for command, moments in MOMENTS.items()]
    return True, f"{' and '.join(counts)} end in equal numbers"


def finish(command: str, runs: Path) -> Path:
    """Run to the end; returns the folder of the run."""
    words = start(command, runs)
    subprocess.run(words, env=ONE_THREAD, check=True, stdout=subprocess.DEVNULL)
    (found,) = runs.glob("*/metrics.json")
    return found.parent


def start(command: str, runs: Path) -> list[str]:
    more = [f"runs={runs}", "trainer.accelerator=cpu", "progress=false"]
    return [sys.executable, "-m", "tricouple_lab", command, *TINY[command], *more]


def stopped(command: str, runs: Path, when: Callable, how: signal.Signals) -> tuple[int, str]:
    """Run until a moment, send a signal; returns the exit code and what was said of errors."""
    began = time.time()
    process = subprocess.Popen(
        start(command, runs),
        env=ONE_THREAD,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not when(process, runs, began):
        time.sleep(0.005)
    process.send_signal(how)  # nothing if it has ended, which the exit code then says
    said = process.communicate()[1]
    return process.returncode, said


def seconds(count: float) -> Callable:
    """The moment after so much of the processor's time."""

    def when(process: subprocess.Popen, runs: Path, began: float) -> bool:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= count

    return when


def epochs(count: int) -> Callable:
    """The moment when the curves have more rows than this."""
    return lambda process, runs, began: any(
        len(rows_of_csv(path)) > count for path in runs.glob("*/history.csv")
    )


def written(name: str) -> Callable:
    """The moment when this file of a run is new."""
    return lambda process, runs, began: any(
        path.stat().st_mtime > began for path in runs.glob(f"*/{name}")
    )


KILL, PRESS = signal.SIGKILL, signal.SIGINT
MOMENTS = {
    "train": {
        **{f"after {count} s": (seconds(count), PRESS) for count in (0.15, 0.5, 2, 4)},
        **{f"with a new {name}": (written(name), PRESS) for name in ("config.yaml", "last.ckpt")},
        **{f"after {count} epochs": (epochs(count), KILL) for count in (2, 4)},
        **{f"after {count} epochs": (epochs(count), PRESS) for count in (5, 7, 9)},
        "in the evaluation": (written("encoder.safetensors"), PRESS),
    },
    "clip": {"after 3 epochs": (epochs(3), KILL)},
}


def rows_of_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def results(folder: Path) -> list[object]:
    """Everything of a run that must not depend on how often it was killed."""
    record = json.loads((folder / "metrics.json").read_text())
    weights = (folder / "encoder.safetensors").read_bytes()
    return [rows_of_csv(folder / "history.csv"), record["before"], record["after"], weights]


# --- sanitizers ----------------------------------------------------------------------------------

FLAGS = "-O1 -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared"
SEE = "from tricouple.ot import _native; print(_native.__file__)"


def address() -> Outcome:
    """The tests of plans and losses on a module that reports every access out of bounds."""
    libraries = [library(name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        return False, "gcc has no sanitizers here"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(TESTS.parent / "src", root / "src", ignore=ignored)
        ot = root / "src/tricouple/ot"
        module = ot / "_native.abi3.so"
        include = f"-I{sysconfig.get_paths()['include']}"
        build = ["gcc", *FLAGS.split(), include, str(ot / "c/module.c"), "-o", str(module)]
        built = subprocess.run(build, capture_output=True, text=True, check=False)
        if built.returncode:
            return False, f"the build fails: {built.stderr[-300:]}"
        environment = ONE_THREAD | {
            "PYTHONPATH": str(root / "src"),
            "LD_PRELOAD": " ".join(map(str, libraries)),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory to its end
        }
        seen = subprocess.run(
            [sys.executable, "-c", SEE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not seen.stdout.startswith(str(root)):
            return False, f"another module is imported: {seen.stdout}{seen.stderr[-300:]}"
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/ot",
                 "tests/losses/test_memory.py", "-m", "not slow"]  # fmt: skip
        done = subprocess.run(
            tests, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
        )
    lines = done.stdout.strip().splitlines() or [done.stderr[-300:]]
    reports = [
        line for line in done.stderr.splitlines() if "Sanitizer" in line or "runtime" in line
    ]
    return done.returncode == 0 and not reports, (reports or lines)[-1].strip("= ")


def library(name: str) -> Path | None:
    """Where gcc has a library; None if it has not."""
    if shutil.which("gcc") is None:
        return None
    asked = ["gcc", f"-print-file-name={name}"]
    found = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    return found if found.is_absolute() else None


# --- memory --------------------------------------------------------------------------------------


def memory() -> Outcome:
    """Steps of all losses with a coupling, on batches of changing sizes, some with an error."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    criteria = [loss.criterion(**loss.soft) for loss in LOSSES.values()]
    before = 0.0
    for step in range(3000):
        rows = torch.randn((96, 112, 128)[step % 3], 16, requires_grad=True)
        labels = torch.arange(len(rows)) % 8
        criteria[step % len(criteria)](rows, labels).backward()
        if step % 50 == 0:
            with contextlib.suppress(ValueError):
                criteria[0](rows, labels[:-1])
        if step == 300:
            before = resident()
    grown = resident() - before
    return grown < 4, f"{before:.1f} MB after 300 steps, {grown:+.1f} MB after 3000"


def resident() -> float:
    """Memory of this process, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


PARTS: dict[str, Callable[[], Outcome]] = {
    "address": address, "grid": grid, "kill": kill, "memory": memory,
}  # fmt: skip


def run_parts(names: list[str]) -> Iterator[tuple[str, Outcome, float]]:
    """Two parts at a time, each in a process of its own."""

    def one(name: str) -> tuple[str, Outcome, float]:
        began = time.monotonic()
        code = f"import hostile, json; print(json.dumps(hostile.PARTS[{name!r}]()))"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=TESTS, stdout=subprocess.PIPE,
            stderr=None, text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.strip().splitlines()
        outcome = json.loads(lines[-1]) if done.returncode == 0 else (False, "an error, see above")
        return name, tuple(outcome), time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(one, names)


def main(names: list[str]) -> int:
    """Run the parts, print the table."""
    warnings.simplefilter("ignore")
    failed = 0
    for name, (holds, text), seconds in run_parts(names or list(PARTS)):
        print(f"{name:8} {'holds' if holds else 'FAILS':6} {seconds:4.0f} s  {text}", flush=True)
        failed += not holds
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
