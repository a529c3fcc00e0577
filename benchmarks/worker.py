"""Processes that measure: each imports tricouple of one tree and times calls of cases.

The parent starts them with that tree's ``src`` first on PYTHONPATH. Questions and answers are
lines of JSON on stdin and stdout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.cases import Call, Case, prepare
from benchmarks.memory import peak_memory_of

ROOT = Path(__file__).resolve().parents[1]
TURN = 0.1  # seconds of a turn: a short call is repeated, each one timed alone
SMALL = 256  # samples of the call before one whose memory is measured
Answer = dict[str, Any]


class Worker:
    """The process of a tree, or several that share a batch and have one thread each."""

    def __init__(self, tree: Path, world: int = 1, threads: int | None = None) -> None:
        env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}
        if threads or world > 1:
            env["OMP_NUM_THREADS"] = "1" if world > 1 else str(threads)
        self.folder = tempfile.TemporaryDirectory()
        place = [world, f"{self.folder.name}/meeting", threads == world == 1]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", json.dumps([rank, *place])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            )
            for rank in range(world)
        ]  # fmt: skip

    def ask(self, what: str, case: Case | None = None) -> Answer:
        """The answer; of several processes the largest numbers.

        Raises:
            RuntimeError: If it failed; the worker has ended then.
        """
        question = json.dumps({"what": what, "case": asdict(case) if case else {}})
        for process in self.processes:
            with suppress(BrokenPipeError):
                print(question, file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline() or "{}") for process in self.processes]
        errors = [found.get("error", "the process ended") for found in answers if "ok" not in found]
        if errors:  # gloo reports in the other processes that one has gone
            self.close()
            raise RuntimeError(min(errors, key=lambda error: "gloo" in error))
        if len(answers) == 1:
            return answers[0]
        times = zip(*(found.pop("seconds") for found in answers), strict=True)
        return {key: max(one[key] for one in answers) for key in answers[0]} | {
            "seconds": [max(together) for together in times]
        }

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            process.stdout.close()
        self.folder.cleanup()


class Workers:
    """Workers by version and number of processes, each started when it is first asked."""

    def __init__(self, trees: Mapping[str, Path], threads: int | None = None) -> None:
        self.trees, self.threads = trees, threads
        self.running: dict[tuple[str, int], Worker] = {}

    def ask(self, version: str, what: str, case: Case | None = None, fresh: bool = False) -> Answer:
        """An answer of the worker of a version; of a ``fresh`` one, which ends then."""
        key = version, case.world if case else 1
        worker = None if fresh else self.running.pop(key, None)
        worker = worker or Worker(self.trees[version].resolve(), key[1], self.threads)
        found = worker.ask(what, case)
        if fresh:
            worker.close()
        else:
            self.running[key] = worker
        return found

    def close(self) -> None:
        """End all."""
        while self.running:
            self.running.popitem()[1].close()


# --- in the process ------------------------------------------------------------------------------


def serve(rank: int, world: int, meeting: str, cpu_time: bool) -> None:
    """Answer questions, one line of JSON each, until there are no more or one fails."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    warnings.filterwarnings("ignore", message='gradient="implicit"')  # plans need not converge
    warnings.simplefilter("ignore", FutureWarning)  # peers call what is to be renamed
    import torch

    import tricouple

    if world > 1:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if world <= len(cores):  # a core of its own, as launchers give it
            os.sched_setaffinity(0, {cores[rank]})
        place = {"rank": rank, "world_size": world, "timeout": timedelta(minutes=10)}
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", **place)
    clock = time.process_time if cpu_time else time.perf_counter

    @lru_cache(maxsize=32)  # the cases of a group
    def prepared(text: str) -> Call:
        return prepare(Case(**json.loads(text)), rank)

    def timed(call: Call) -> float:
        if world > 1:
            torch.distributed.barrier()
        began = clock()
        call()
        return clock() - began

    def answer(what: str, case: dict[str, Any]) -> Answer:
        if what == "hello":
            return {"file": tricouple.__file__, "compiled": tricouple.ot.compiled()}
        if what == "memory":
            known = Case(**case)
            prepare(replace(known, n=min(SMALL, known.n // 4)), rank)()
            call, seconds = prepare(known, rank), []
            return peak_memory_of(lambda: seconds.append(timed(call))) | {"seconds": seconds}
        call, until = prepared(json.dumps(case)), time.perf_counter() + TURN
        seconds = [timed(call)]
        while world == 1 and time.perf_counter() < until:
            seconds.append(timed(call))
        return {"seconds": seconds}

    for line in sys.stdin:
        found: Answer = {"ok": True}
        try:
            found |= answer(**json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(found), file=answers, flush=True)
        if "error" in found:
            break


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
