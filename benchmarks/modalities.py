"""Three modalities in one plan: gradients after ten sweeps beside that of the converged plan.

``python -m benchmarks.modalities``. Time and memory: ``tricouple bench --only 'MultiModalIOT*'``.
"""

from typing import Any

import pandas as pd
import torch
from torch.nn.functional import cosine_similarity

import tricouple as tc
from benchmarks.table import as_markdown

CONVERGED = {"n_iters": 600, "inner": 30, "tol": 1e-6, "gradient": "envelope"}
WAYS = {"unrolled": {}, "envelope": {"gradient": "envelope"}, "unrolled, inner=5": {"inner": 5}}
SETTINGS = ((0, 10), (0, 30), (1, 10), (1, 30), (2, 10), (2, 30), (4, 10))


def ten_sweeps(alignment: float, c: float) -> dict[str, Any]:
    """A row: 64 triples in float64, ``alignment`` times a common part, and noise."""
    generator = torch.Generator().manual_seed(0)
    common, *noise = torch.randn(4, 64, 16, generator=generator, dtype=torch.float64)
    x = {str(k): (alignment * common + part).requires_grad_() for k, part in enumerate(noise)}
    row = {"cosine of pairs": cosine_similarity(x["0"], x["1"]).mean().item(), "c": c}
    row["marginal error"] = tc.ot.multimodal_sinkhorn(x, c, n_iters=10, inner=1).marginal_error
    losses = [tc.MultiModalIOT(c, **how)(x) for how in (CONVERGED, *WAYS.values())]
    gradients = [torch.cat(torch.autograd.grad(loss, [*x.values()])).flatten() for loss in losses]
    cosines = cosine_similarity(gradients[0], torch.stack(gradients[1:]), dim=1)
    return row | dict(zip(WAYS, cosines.tolist(), strict=True))


if __name__ == "__main__":
    print(as_markdown(pd.DataFrame([ten_sweeps(*setting) for setting in SETTINGS])), end="")
