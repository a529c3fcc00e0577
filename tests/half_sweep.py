"""What ``torch.compile`` makes of a half-sweep: the sums over all partners but one.

    python tests/half_sweep.py          # a table, a minute; a C++ compiler is needed

A coupling is one operator to a compiled graph, and its half-sweeps are few operations on whole
matrices (docs/accelerators.md, Launches). Here inductor fuses those of one of them, from the
similarities to the column sums, beside the eager code; both in turns, the best of many calls.
"""

import sys
import time

import torch

from tricouple.ot.sweeps.triplet_log import AllButOne


def half_sweep(scores: torch.Tensor, phi: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """``log Σ_i exp(φ_i + s_ij) Σ_{k≠j} exp(g_k − s_ik)`` of every j."""
    return torch.logsumexp(AllButOne.of(g - scores).log_sums + scores + phi[:, None], 0)


def best_of(calls: dict[str, object], arguments: tuple, rounds: int) -> dict[str, float]:
    """Milliseconds of the best call of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call(*arguments)
            best[name] = min(best[name], 1000 * (time.perf_counter() - began))
    return best


def main(sizes: tuple[int, ...] = (256, 1024), rounds: int = 40) -> dict[int, float]:
    """Print the table; returns inductor's time over eager's for each size."""
    ratios = {}
    print("   N  eager, ms  inductor, ms  ratio")
    for n in sizes:
        unit = torch.nn.functional.normalize(torch.randn(n, 64, dtype=torch.float64))
        arguments = 10 * unit @ unit.T, torch.randn(n).double(), torch.randn(n).double()
        calls = {"eager": half_sweep, "inductor": torch.compile(half_sweep, fullgraph=True)}
        found = [call(*arguments) for call in calls.values()]
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
        times = best_of(calls, arguments, rounds)
        ratios[n] = times["inductor"] / times["eager"]
        print(f"{n:4}  {times['eager']:9.2f}  {times['inductor']:12.2f}  {ratios[n]:5.2f}")
    return ratios


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    main(tuple(int(word) for word in sys.argv[1:]) or (256, 1024))
