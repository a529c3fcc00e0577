"""Worker processes of ``versions.py``: each imports tricouple of its version and times calls.

The parent starts them with that version's ``src`` first on PYTHONPATH. Questions and answers are
lines of JSON on stdin and stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_memory_of
from benchmarks.versions_cases import Case

ROOT = Path(__file__).resolve().parents[1]
TURN = 0.02  # seconds of a turn: a short call is repeated, each one timed alone


class Worker:
    """The process of a version, or several that share a batch."""

    def __init__(self, tree: Path, threads: int, world: int = 1) -> None:
        path = f"{tree / 'src'}{os.pathsep}{ROOT}"
        threads = threads if world == 1 else 1
        env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        self.folder = tempfile.TemporaryDirectory()
        place = [world, threads, f"{self.folder.name}/meeting"]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.versions_worker", json.dumps([rank, *place])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(world)
        ]

    def ask(self, what: str, case: Case | None = None) -> dict[str, Any]:
        """The answer; of several processes the largest numbers."""
        question = json.dumps({"what": what, "case": asdict(case) if case else {}})
        for process in self.processes:
            with suppress(BrokenPipeError):
                print(question, file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline() or "{}") for process in self.processes]
        if failed := [found for found in answers if "error" in found or not found]:
            raise SystemExit(f"{case}: {failed[0] or 'the process ended'}")
        return {key: max(found[key] for found in answers) for key in answers[0]}

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            process.stdout.close()
        self.folder.cleanup()


# --- in the process ------------------------------------------------------------------------------


def prepare(case: Case, rank: int, cpu_time: bool) -> Callable[[], float]:
    """Build a case's tensors; return a call that gives the seconds of forward and backward."""
    import torch
    from torch.nn.functional import normalize

    import tricouple as tc

    torch.manual_seed(0)
    n, clock = case.n, time.process_time if cpu_time else time.perf_counter
    x, y, mean = torch.randn(n, case.d), torch.randn(n, case.d), torch.randn(case.d)
    labels = torch.arange(n) // (1 if case.sets == "both" else 4)
    if case.batch in ("outlier", "collapsed"):
        x = mean / mean.norm() + 0.02 * x
    if case.batch == "outlier":
        x[0] = -mean
    if case.batch == "duplicated":
        x = x[labels]
    part = slice(rank * n // case.world, (rank + 1) * n // case.world)
    leaves = [s[part].clone().requires_grad_() for s in ((x,) if case.sets == "one" else (x, y))]
    labels = labels[part]
    if case.loss == "ClipLoss":
        from tricouple.torchvision_ops import declare_missing

        declare_missing()
        from open_clip.loss import ClipLoss

        peer, scale = ClipLoss(), torch.tensor(case.c)
        criterion = lambda x, y, _: peer(normalize(x, dim=1), normalize(y, dim=1), scale)  # noqa: E731
    else:
        room = {} if case.budget is None else {"memory_budget": int(case.budget * 4 * n * n)}
        criterion = getattr(tc, case.loss)(sharpness=case.c, **case.options, **room)
        criterion = tc.BothDirections(criterion) if case.sets == "both" else criterion

    def call() -> Any:
        if case.sets == "two":
            return criterion(leaves[0], labels, ref_emb=leaves[1], ref_labels=labels)
        return criterion(*leaves, labels)

    def step() -> float:
        for leaf in leaves:
            leaf.grad = None
        if case.world > 1:
            torch.distributed.barrier()
        began = clock()
        call().backward()
        return clock() - began

    return step


def serve(rank: int, world: int, threads: int, meeting: str) -> None:
    """Answer questions, one line of JSON each, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch

    import tricouple

    torch.set_num_threads(threads)
    if world > 1:
        place = {"rank": rank, "world_size": world, "timeout": timedelta(minutes=10)}
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", **place)

    @cache
    def prepared(text: str) -> Callable[[], float]:
        return prepare(Case(**json.loads(text)), rank, cpu_time=threads == world == 1)

    def answer(what: str, case: dict[str, Any]) -> dict[str, Any]:
        if what == "hello":
            compiled = tricouple.ot.compiled()
            return {"torch": torch.__version__, "file": tricouple.__file__, "compiled": compiled}
        step = prepared(json.dumps(case))
        if what == "time":
            times, until = [step()], time.perf_counter() + TURN
            while world == 1 and times[0] < TURN and time.perf_counter() < until:
                times.append(step())
            return {"seconds": min(times)}
        prepared(json.dumps(case | {"n": min(256, case["n"])}))()
        seconds = []
        found = peak_memory_of(lambda: seconds.append(step()))
        return {"memory": found["extra_bytes"] / (4 * case["n"] ** 2), "seconds": seconds[0]}

    for line in sys.stdin:
        try:
            found = answer(**json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
