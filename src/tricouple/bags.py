"""Images and texts that belong together only as bags: the plan inside each bag, as pairs."""

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import unit_vectors
from tricouple.numeric import compute_dtype, never_compiled, wide_dtype
from tricouple.ot.plans import sinkhorn


@never_compiled
@torch.no_grad()
def match_bags(
    images: Tensor,
    texts: Tensor,
    bags: checks.Labels | tuple[checks.Labels, checks.Labels],
    sharpness: float = 10.0,
    orphans: float = 0.0,
) -> Tensor:
    """Match the images and texts of each bag (a page, an album) one to one, by a balanced plan.

    ``W_ij = exp(c s_ij + f_i + g_j)`` for i and j of one bag, s the cosine, f and g such that rows
    and columns of a bag sum to one; 0 for pairs of two bags.

    Args:
        images: Shape (N, d); they need not be normalised.
        texts: Shape (M, d).
        bags: The bag of each image and the bag of each text, a tuple of two vectors of integers, or
            one vector if they are the same.
        sharpness: c.
        orphans: The share of a bag that has no partner, at least 0 and below 1: a dummy image and a
            dummy text take all but (1 − orphans) · min(n, m) of its n images and m texts.

    Returns:
        W, shape (N, M), without a gradient, for ``criterion(images, ref_emb=texts, pairs=W)`` or
        ``BothDirections(criterion)(images, texts, pairs=W)``. Each image's row sums to at most 1.

    Example:
        >>> match_bags(torch.eye(2), torch.eye(2).flip(0), [7, 7], sharpness=2).round(decimals=2)
        tensor([[0.1200, 0.8800],
                [0.8800, 0.1200]])
    """
    checks.matrix("images", images)
    checks.matrix("texts", texts)
    checks.positive_number("sharpness", sharpness)
    if texts.shape[1] != images.shape[1]:
        raise ValueError(f"texts have {texts.shape[1]} dimensions, images {images.shape[1]}")
    if not 0 <= orphans < 1:
        raise ValueError(f"orphans must be at least 0 and below 1, got {orphans}")
    device, wide = images.device, wide_dtype(images.device)
    both = bags if isinstance(bags, tuple) else (bags, bags)
    of_images = checks.labels("bags of images", both[0], len(images), device)
    of_texts = checks.labels("bags of texts", both[-1], len(texts), device)
    names, codes = torch.cat([of_images, of_texts]).unique(return_inverse=True)
    here, there = codes.split([len(images), len(texts)])
    n, m = (torch.bincount(code, minlength=len(names)).to(wide) for code in (here, there))
    if orphans == 0 and not torch.equal(n, m):
        bag = int((n != m).nonzero()[0])
        raise ValueError(
            f"bag {int(names[bag])} has {int(n[bag])} images and {int(m[bag])} texts: make them "
            "equal, or give orphans, such as 0.3, the share that has no partner"
        )

    def padded(name: str, rows: Tensor, code: Tensor, others: Tensor) -> tuple[Tensor, ...]:
        """Unit vectors, (B, n + 1, d), their masses, and the place of each; the last is a dummy."""
        places = torch.tril(code[:, None] == code, -1).sum(1)
        masses = torch.zeros(len(names), int(places.max()) + 2, dtype=wide, device=device)
        masses[:, -1] = others - (1 - orphans) * torch.minimum(n, m)
        masses[code, places] = 1.0
        stack = masses.new_zeros(*masses.shape, rows.shape[1])
        stack[code, places] = unit_vectors(name, rows.to(wide), checks.Deferred(read=True))
        return stack, masses / masses.sum(1, keepdim=True), places

    x, p, place = padded("images", images, here, m)
    y, q, partner = padded("texts", texts, there, n)
    cost = -x @ y.mT
    cost[:, -1, -1] = torch.inf  # no dummy for a dummy: so their similarity, 0, cancels
    plan = sinkhorn(cost, 1 / sharpness, row_marginal=p, column_marginal=q, n_iters=1000, tol=1e-13)
    weights = plan.dense()
    weights /= weights.sum(2, keepdim=True)
    weights = weights[here[:, None], place[:, None], partner].where(here[:, None] == there, 0.0)
    return weights.to(compute_dtype(torch.promote_types(images.dtype, texts.dtype)))
