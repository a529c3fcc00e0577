"""Resident memory of a process, as the kernel counts it."""

from __future__ import annotations

import math
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


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
    other = largest * (1 if sys.platform == "darwin" else 1024)
    return 1024 * int(linux("self/status", rf"{field}:\s*(\d+)", other / 1024))


def available() -> float:
    """Return the bytes that are free for processes; infinity where the system does not tell."""
    return 1024 * float(linux("meminfo", r"MemAvailable:\s*(\d+)", math.inf))


def linux(file: str, pattern: str, otherwise: Any) -> Any:
    """Return what a file of the kernel says."""
    with suppress(OSError):
        found = re.search(pattern, Path("/proc", file).read_text())
        return found[1] if found else otherwise
    return otherwise
