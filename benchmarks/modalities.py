"""Three modalities in one plan: time beside the dense tensor, memory, and what ten sweeps give.

``python -m benchmarks.modalities``
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tricouple as tc

SWEEPS, DIM, C = 10, 32, 10.0


class Live(TorchDispatchMode):
    """The peak of live storage, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.users: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        """Call it; note what it has made."""
        found = function(*args, **(kwargs or {}))
        for part in tree_leaves(found):
            if isinstance(part, Tensor):
                storage = part.untyped_storage()
                self.sizes[storage.data_ptr()] = storage.nbytes()
                self.users[storage.data_ptr()] += 1
                weakref.finalize(part, self._drop, storage.data_ptr())
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found

    def _drop(self, storage: int) -> None:
        self.users[storage] -= 1
        if not self.users[storage]:
            del self.sizes[storage]


def rows(n: int) -> dict[str, Tensor]:
    """Random float32 embeddings of three modalities."""
    generator = torch.Generator().manual_seed(0)
    names = ("image", "text", "audio")
    return {k: torch.randn(n, DIM, generator=generator).requires_grad_() for k in names}


def dense(embeddings: dict[str, Tensor], sweeps: int = SWEEPS) -> Tensor:
    """The loss of rows that belong together, from the N×N×N tensor."""
    x, y, z = (normalize(values, dim=1) for values in embeddings.values())
    scores = C * ((x @ y.T)[:, :, None] + (x @ z.T)[:, None, :] + y @ z.T)
    f, places = [x.new_zeros(len(x))] * 3, ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    for update in range(3 * sweeps):
        axis, others = update % 3, [k for k in range(3) if k != update % 3]
        logs = scores + f[others[0]].view(places[others[0]]) + f[others[1]].view(places[others[1]])
        f[axis] = -math.log(len(x)) - torch.logsumexp(logs, others)
    own = sum((a * b).sum(1) for a, b in ((x, y), (x, z), (y, z)))
    return -(C * own + f[0] + f[1] + f[2]).mean() - math.log(len(x))


def seconds(loss: Callable[[dict[str, Tensor]], Tensor], n: int, repeat: int) -> float:
    """The least CPU time of value and gradient."""
    best, embeddings = math.inf, rows(n)
    for _ in range(repeat):
        start = time.process_time()
        loss(embeddings).backward()
        best = min(best, time.process_time() - start)
    return best


def matrices(n: int, **options: Any) -> float:
    """The peak of live storage during value and gradient, in N×N float32 matrices."""
    embeddings = rows(n)
    with Live() as live:
        tc.MultiModalIOT(C, **options)(embeddings).backward()
    return live.peak / (4 * n * n)


def ten_sweeps(alignment: float, c: float) -> str:
    """Gradients after ten sweeps beside that of the converged plan, of 64 triples in float64.

    Embeddings are ``alignment`` times a common part, and noise.
    """
    generator = torch.Generator().manual_seed(0)
    common, *noise = torch.randn(4, 64, 16, generator=generator, dtype=torch.float64)
    x = {str(k): (alignment * common + part).requires_grad_() for k, part in enumerate(noise)}
    until = {"n_iters": 600, "inner": 30, "tol": 1e-6}
    gradients = []
    for how in ({**until, "gradient": "envelope"}, {}, {"gradient": "envelope"}, {"inner": 5}):
        value = tc.MultiModalIOT(c, **how)(x)  # type: ignore[arg-type]
        gradients.append(torch.cat(torch.autograd.grad(value, [*x.values()])).flatten())
    converged, *found = gradients
    similar = [cosine_similarity(converged, one, dim=0).item() for one in found]
    cosine = cosine_similarity(x["0"], x["1"]).mean().item()
    ways = ({"n_iters": 10, "inner": 1}, until)
    error, rest = (tc.ot.multimodal_sinkhorn(x, c, **how).marginal_error for how in ways)  # type: ignore[arg-type]
    text = "cosine of pairs {:.2f}, c = {:g}: marginal error {:.0e} (converged {:.0e}), gradients "
    text += "unrolled {:.2f}, envelope {:.2f}, inner=5 {:.2f}"
    return text.format(cosine, c, error, rest, *similar)


def main(n: int = 256, of_memory: int = 1024) -> None:
    """Print all."""
    torch.set_num_threads(1)
    criterion = tc.MultiModalIOT(C, n_iters=SWEEPS)
    ours, tensor = seconds(criterion, n, 5), seconds(dense, n, 1)
    equal = abs(float(criterion(rows(n)).detach()) / float(dense(rows(n), SWEEPS).detach()) - 1)
    print(f"N = {n}: {ours:.3g} s, dense tensor {tensor:.3g} s, {tensor / ours:.0f} times")
    print(f"  values differ by {equal:.0e}")
    print(f"N = {of_memory}: {matrices(of_memory, n_iters=SWEEPS):.2f} N×N matrices at the peak")

    for alignment, c in ((0, 10), (0, 30), (1, 10), (1, 30), (2, 10), (2, 30), (4, 10)):
        print(ten_sweeps(alignment, c))


if __name__ == "__main__":
    main()
