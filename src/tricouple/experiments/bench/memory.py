"""Peak memory of one call, measured in a fresh process that does nothing else.

The process imports, builds the batch, warms up on a tiny batch, and notes its resident memory;
the peak above that during one call at full size is the extra memory of the call. On Linux the
kernel's own high-water mark (VmHWM) is reset and read: unlike ``ru_maxrss`` it is not inherited
from the parent process and forgets what the imports once needed.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tricouple.experiments.bench.contenders import BY_NAME
from tricouple.experiments.bench.problem import Problem, make_batch

WARM_UP_SIZE = 32


@dataclass(frozen=True)
class PeakMemory:
    """Peak resident memory of a process, and the part of it due to one call."""

    peak_bytes: int
    extra_bytes: int


def peak_memory_of(step: Callable[[], object]) -> PeakMemory:
    """Call `step` once and return the peak of this process during it."""
    with suppress(OSError):  # where the system can set the high-water mark to the current use
        Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    step()
    peak = resident_bytes("VmHWM")
    return PeakMemory(peak_bytes=peak, extra_bytes=max(0, peak - before))


def measure_memory(contender: str, size: int, problem: Problem) -> PeakMemory:
    """Measure a contender in a fresh process.

    Raises:
        RuntimeError: If the process failed, with the last line that it said.
    """
    request = json.dumps({"contender": contender, "size": size, "problem": asdict(problem)})
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=request, capture_output=True, text=True
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(said[-1])
    return PeakMemory(**json.loads(done.stdout))


def answer(request: str) -> str:
    """Do in this process what `measure_memory` asked for."""
    asked = json.loads(request)
    problem = Problem(**asked["problem"])
    prepare = BY_NAME[asked["contender"]].prepare
    prepare(make_batch(WARM_UP_SIZE, problem), problem)()
    step = prepare(make_batch(asked["size"], problem), problem)
    return json.dumps(asdict(peak_memory_of(step)))


def resident_bytes(field: str) -> int:
    """Return resident memory now (VmRSS) or at its peak; the peak where only that is told."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, other systems in KiB.
    return _linux("/proc/self/status", field) or largest * (1 if sys.platform == "darwin" else 1024)


def available_bytes() -> int | None:
    """Return the memory that new processes can use, None where the system does not tell."""
    return _linux("/proc/meminfo", "MemAvailable")


def _linux(file: str, field: str) -> int | None:
    """Return a field of a file of the kernel in bytes, None on other systems."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    values = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    kibibytes = next(values, None)
    return None if kibibytes is None else 1024 * int(kibibytes)


if __name__ == "__main__":
    print(answer(sys.stdin.read()))
