"""Features of two sets: whitening, CCA, cosine similarities, recall; training of small heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR


def whitening(
    features: Tensor, ridge: float, keep: int | None = None
) -> Callable[[Tensor], Tensor]:
    """X ↦ (x − mean) (C + ridge · (tr C / D) · I)^(−1/2), C the covariance of features (N, D).

    In whitened coordinates CCA is an SVD. The square root is up to a rotation, which CCA ignores;
    ``keep`` is the number of principal directions that are kept.
    """
    centre = features.mean(0)
    centred = (features - centre).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    scale = (values.clamp(min=0) + ridge * values.mean()).rsqrt()
    whiten = (vectors * scale)[:, -(keep or len(values)) :].float()
    return lambda x: (x - centre) @ whiten


def cca(cross: Tensor, rank: int, power: float) -> tuple[Tensor, Tensor]:
    """Maps U_k ρ^power (D, k) and V_k ρ^power (E, k) of cross = U diag(ρ) Vᵀ, shape (D, E).

    V and ρ² come from crossᵀ cross: faster than an SVD, as E < D and only k pairs are needed.
    """
    cross = cross.double()
    rank = min(rank, *cross.shape)
    values, vectors = torch.linalg.eigh(cross.T @ cross)
    rho, right = values[-rank:].clamp(min=1e-20).sqrt(), vectors[:, -rank:]
    weight = (rho / rho.max()) ** power
    return (cross @ right / rho * weight).float(), (right * weight).float()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarities (…, N, M) of a (…, N, d) and b (…, M, d)."""
    return normalize(a, dim=-1) @ normalize(b, dim=-1).mT


def recall(to_texts: Tensor, to_images: Tensor) -> dict[str, float]:
    """recall@k in percent from scores (N, N·K), image → text and text → image; their mean.

    Ties are misses.
    """
    n = len(to_texts)
    own_texts, own_images = (s.view(n, n, -1).diagonal().T for s in (to_texts, to_images))  # (N, K)
    image_rank = (to_texts >= own_texts.amax(1, keepdim=True)).sum(1)  # 1 = first
    text_rank = (to_images >= own_images.reshape(1, -1)).sum(0)
    result: dict[str, float] = {}
    for k in (1, 5, 10):
        i2t, t2i = (100 * (rank <= k).double().mean().item() for rank in (image_rank, text_rank))
        result |= {f"i2t@{k}": i2t, f"t2i@{k}": t2i, f"recall@{k}": (i2t + t2i) / 2}
    return result


def descend(
    optimizer: Optimizer, steps: int, loss: Callable[[], Tensor], schedule: Any = None
) -> None:
    """Steps on ``loss()``, that of the next batch; a cosine schedule unless another is given."""
    schedule = schedule or CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        found = loss()
        if not bool(found.isfinite()):
            raise FloatingPointError(f"step {step} of {steps}: the loss is {float(found)}")
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        schedule.step()
