"""Processes that measure: each imports tricouple of one tree and times calls of cases.

The parent starts them with that tree's ``src`` first on PYTHONPATH. Questions and answers are
lines of JSON on stdin and stdout.
"""

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.cases import Call, Case, prepare

ROOT = Path(__file__).resolve().parents[1]
TURN = 0.1  # seconds of a turn: a short call is repeated, each one timed alone
SMALL = 256  # samples of the call before one whose memory is measured
Answer = dict[str, Any]


class Workers:
    """Processes by version and number of them that share a batch, started when first asked.

    Several have one thread each.
    """

    def __init__(self, trees: Mapping[str, Path], threads: int | None = None) -> None:
        self.trees, self.threads = trees, threads
        self.folder = tempfile.TemporaryDirectory()
        self.running: dict[tuple[str, int], list[subprocess.Popen[str]]] = {}

    def start(self, tree: Path, world: int) -> list[subprocess.Popen[str]]:
        """New processes that import tricouple of a tree."""
        env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}
        threads = 1 if world > 1 else self.threads
        if threads:
            env["OMP_NUM_THREADS"] = str(threads)
        meeting = tempfile.mktemp(dir=self.folder.name)  # a file that the processes make
        place = [world, meeting, self.threads == world == 1]
        return [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", json.dumps([rank, *place])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            )
            for rank in range(world)
        ]  # fmt: skip

    def ask(self, version: str, what: str, case: Case) -> Answer:
        """The answer of a version, of several processes the largest numbers.

        The process of a question about memory is fresh; the others go on until one fails.

        Raises:
            RuntimeError: If it failed.
        """
        key, fresh = (version, case.world), what == "memory"
        processes = None if fresh else self.running.pop(key, None)
        processes = processes or self.start(self.trees[version].resolve(), case.world)
        question = json.dumps({"what": what, "case": asdict(case)})
        for process in processes:
            with suppress(BrokenPipeError):
                print(question, file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline() or "{}") for process in processes]
        errors = [found.get("error", "the process ended") for found in answers if "ok" not in found]
        if fresh or errors:
            end(processes)
        else:
            self.running[key] = processes
        if errors:  # gloo reports in the other processes that one has gone
            raise RuntimeError(min(errors, key=lambda error: "gloo" in error))
        return {key: max(found[key] for found in answers) for key in answers[0]}

    def close(self) -> None:
        """End all."""
        while self.running:
            end(self.running.popitem()[1])
        self.folder.cleanup()


def end(processes: list[subprocess.Popen[str]]) -> None:
    """End processes, which stop when there are no more questions."""
    for process in processes:
        process.communicate()


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
        if what == "version":
            return {"file": tricouple.__file__, "compiled": tricouple.ot.compiled()}
        if what == "memory":
            known = Case(**case)
            prepare(replace(known, n=min(SMALL, known.n // 4)), rank)()
            call, seconds = prepare(known, rank), []
            return peak_memory_of(lambda: seconds.append(timed(call))) | {"seconds": seconds}
        call, until = prepared(json.dumps(case)), time.perf_counter() + TURN
        seconds = [timed(call)]
        while world == 1 and time.perf_counter() < until:  # several processes take one call
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


# --- resident memory of a process, as the kernel counts it ---------------------------------------


def peak_memory_of(step: Callable[[], object]) -> dict[str, int]:
    """Call once; return the peak of this process during it, and what the call added."""
    with suppress(OSError):  # Linux: the mark of the peak, VmHWM, starts again
        Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    step()
    peak = resident_bytes("VmHWM")
    return {"peak_bytes": peak, "extra_bytes": max(0, peak - before)}


def resident_bytes(field: str) -> int:
    """Return resident memory now (VmRSS) or at its peak (VmHWM); elsewhere always the peak."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts in bytes
    other = largest / (1024 if sys.platform == "darwin" else 1)
    return 1024 * int(linux("self/status", rf"{field}:\s*(\d+)", other))


def available() -> float:
    """Return the bytes that are free for processes; infinity where the system does not tell."""
    return 1024 * float(linux("meminfo", r"MemAvailable:\s*(\d+)", math.inf))


def linux(file: str, pattern: str, otherwise: Any) -> Any:
    """Return what a file of the kernel says."""
    with suppress(OSError):
        if found := re.search(pattern, Path("/proc", file).read_text()):
            return found[1]
    return otherwise


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
