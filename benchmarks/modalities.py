"""Three modalities in one plan: what ten sweeps give beside the converged plan.

``python -m benchmarks.modalities``. Time and memory: ``tricouple bench --only 'MultiModalIOT*'``.
"""

from typing import Any

import torch
from torch.nn.functional import cosine_similarity

import tricouple as tc


def ten_sweeps(alignment: float, c: float) -> str:
    """Gradients after ten sweeps beside that of the converged plan, of 64 triples in float64.

    Embeddings are ``alignment`` times a common part, and noise.
    """
    generator = torch.Generator().manual_seed(0)
    common, *noise = torch.randn(4, 64, 16, generator=generator, dtype=torch.float64)
    x = {str(k): (alignment * common + part).requires_grad_() for k, part in enumerate(noise)}
    until: dict[str, Any] = {"n_iters": 600, "inner": 30, "tol": 1e-6}
    gradients = []
    for how in ({**until, "gradient": "envelope"}, {}, {"gradient": "envelope"}, {"inner": 5}):
        value = tc.MultiModalIOT(c, **how)(x)
        gradients.append(torch.cat(torch.autograd.grad(value, [*x.values()])).flatten())
    converged, *found = gradients
    unrolled, envelope, inner = (cosine_similarity(converged, one, dim=0) for one in found)
    cosine = cosine_similarity(x["0"], x["1"]).mean()
    ways: tuple[dict[str, Any], ...] = ({"n_iters": 10, "inner": 1}, until)
    error, rest = (tc.ot.multimodal_sinkhorn(x, c, **how).marginal_error for how in ways)
    return (
        f"cosine of pairs {cosine:.2f}, c = {c:g}: marginal error {error:.0e} (converged "
        f"{rest:.0e}), gradients unrolled {unrolled:.2f}, envelope {envelope:.2f}, "
        f"inner=5 {inner:.2f}"
    )


if __name__ == "__main__":
    for alignment, c in ((0, 10), (0, 30), (1, 10), (1, 30), (2, 10), (2, 30), (4, 10)):
        print(ten_sweeps(alignment, c))
