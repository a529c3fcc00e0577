"""The geometry of embeddings: neural collapse, spectra, alignment and uniformity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import checks


@dataclass(frozen=True)
class NeuralCollapse:
    """How far class means are from a simplex ETF, and samples from their means.

    Attributes:
        nc1: Within-class scatter, ``Σ_c Σ_{i∈c} |z_i − μ_c|²`` of unit embeddings.
        nc2_std: Standard deviation of the cosines between centred class means.
        nc2_deviation: Mean of ``|cos + 1/(K−1)|`` over pairs of classes.
        spectrum: Eigenvalues of the class-mean covariance ``μᵀμ/(K−1)``, descending, K−1 of them.
    """

    nc1: float
    nc2_std: float
    nc2_deviation: float
    spectrum: Tensor

    def row(self) -> dict[str, float]:
        """The scalar figures, as a table row."""
        figures = {name: value for name, value in vars(self).items() if name != "spectrum"}
        ratio = float(self.spectrum[-1] / self.spectrum[0]) if self.spectrum[0] > 0 else 0.0
        return {**figures, "spectrum_ratio": ratio}


@dataclass(frozen=True)
class TwoDistance:
    """Mean and standard deviation of cosines, of distinct samples of one class and of two classes.

    ``alpha`` and ``alpha_std`` are those of one class, ``beta`` and ``beta_std`` those of two.
    """

    alpha: float
    beta: float
    alpha_std: float
    beta_std: float


@dataclass(frozen=True)
class Hubness:
    """Whether few items answer many queries; N_k is how often an item is among the first k.

    Attributes:
        skewness: Of N_k over the items: 0 for a symmetric distribution, large if there are hubs.
        never: Share of the items that no query finds.
    """

    skewness: float
    never: float


def neural_collapse(embeddings: Tensor, labels: Tensor) -> NeuralCollapse:
    """Measure NC1, NC2 and the class-mean spectrum (paper, "Experimental setup and metrics").

    Args:
        embeddings: Shape (N, d), normalised here.
        labels: Class of each sample, at least two classes.

    Example:
        >>> z = torch.eye(3).repeat_interleave(2, 0)
        >>> neural_collapse(z, torch.tensor([0, 0, 1, 1, 2, 2])).nc1
        0.0
    """
    z, codes, n_classes = _prepare(embeddings, labels)
    counts = torch.bincount(codes, minlength=n_classes)[:, None].to(z.dtype)
    means = z.new_zeros(n_classes, z.shape[1]).index_add(0, codes, z) / counts  # (K, d)
    nc1 = float((z - means[codes]).square().sum())
    centred = means - means.mean(0)
    directions = torch.nn.functional.normalize(centred, dim=1)
    cosines = (directions @ directions.T)[~torch.eye(n_classes, dtype=torch.bool, device=z.device)]
    deviation = float((cosines + 1 / (n_classes - 1)).abs().mean())
    # The nonzero eigenvalues of μᵀμ (d×d) are those of the K×K Gram matrix.
    values = torch.linalg.eigvalsh(centred @ centred.T / (n_classes - 1)).flip(0)
    spectrum = values[: n_classes - 1].clamp_min(0.0)
    return NeuralCollapse(nc1, float(cosines.std(correction=0)), deviation, spectrum)


def two_distance(embeddings: Tensor, labels: Tensor) -> TwoDistance:
    """Measure α and β, the two similarities of a class-homogeneous configuration.

    Arguments as in ``neural_collapse``; some class needs two samples.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        >>> result = two_distance(z, torch.tensor([0, 0, 1, 1]))
        >>> result.alpha, result.beta
        (1.0, -1.0)
    """
    z, codes, _ = _prepare(embeddings, labels)
    similarity = z @ z.T
    same = codes[:, None] == codes
    within = similarity[same.clone().fill_diagonal_(False)]
    across = similarity[~same]
    if not len(within):
        raise ValueError("labels give no class two samples: alpha is not defined")
    return TwoDistance(
        float(within.mean()),
        float(across.mean()),
        float(within.std(correction=0)),
        float(across.std(correction=0)),
    )


def effective_rank(embeddings: Tensor) -> float:
    """The exponential of the entropy of the shares of singular values, of centred unit embeddings.

    Example:
        >>> round(effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])), 6)
        4.0
    """
    z = _unit(embeddings)
    values = torch.linalg.svdvals(z - z.mean(0))
    total = values.sum()
    if total <= 0:
        return 0.0
    shares = values / total
    return float(torch.exp(-torch.special.xlogy(shares, shares).sum()))


def alignment(embeddings: Tensor, labels: Tensor) -> float:
    """Mean squared distance of positive pairs, ``E |z_i − z_j|²`` (lower is better).

    Example:
        >>> alignment(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 0, 1]))
        2.0
    """
    return 2 - 2 * two_distance(embeddings, labels).alpha


def uniformity(embeddings: Tensor, t: float = 2.0) -> float:
    """``log E exp(−t |z_i − z_j|²)`` over distinct samples (lower is more uniform).

    Example:
        >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 6)
        -8.0
    """
    checks.positive_number("t", t)
    z = _unit(embeddings)
    n = len(z)
    if n < 2:
        raise ValueError(f"embeddings must hold at least 2 samples, got {n}")
    distances = (2 - 2 * (z @ z.T)).fill_diagonal_(torch.inf)
    return float(torch.logsumexp(-t * distances.flatten(), 0)) - math.log(n * (n - 1))


def hubness(queries: Tensor, items: Tensor | None = None, k: int = 10) -> Hubness:
    """Measure hubs among the k nearest items of each query, by cosine.

    Args:
        queries: Shape (n, d), need not be normalised.
        items: Shape (m, d); None for the queries, each without itself.
        k: How many items a query retrieves.

    Example:
        >>> hubness(torch.eye(4), torch.eye(4), k=1)
        Hubness(skewness=0.0, never=0.0)
    """
    z = _unit(queries)
    similarity = z @ (z if items is None else _unit(items)).T
    return hubness_of(similarity.fill_diagonal_(-torch.inf) if items is None else similarity, k)


def hubness_of(similarity: Tensor, k: int = 10) -> Hubness:
    """The same from any scores, shape (queries, items).

    Example:
        >>> hubness_of(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), k=1).never
        0.5
    """
    checks.matrix("similarity", similarity)
    checks.count("k", k)
    if k > similarity.shape[1]:
        raise ValueError(f"k is {k}, but there are only {similarity.shape[1]} items")
    found = similarity.topk(k, dim=1).indices.flatten()
    counts = found.bincount(minlength=similarity.shape[1]).double()
    gaps = counts - counts.mean()
    spread = float(gaps.square().mean()) ** 1.5
    skewness = float(gaps.pow(3).mean()) / spread if spread > 0 else 0.0
    return Hubness(skewness, float((counts == 0).double().mean()))


def etf_loss(
    n_classes: int,
    per_class: int,
    *,
    temperature: float = 0.1,
    epsilon: float = 0.1,
    alpha: float = 1.0,
    beta: float | None = None,
) -> float:
    """The exact loss of ``NegMMIOT`` (linear ψ) at a two-distance configuration.

    With balanced classes the plan is the normalised kernel, by symmetry, and
    ``KL = log(Σ_{all triplets} e^{−C/ε} / Σ_{admissible} e^{−C/ε})``. At the defaults this is the
    simplex ETF, the global optimum.

    Args:
        n_classes: K.
        per_class: Samples of each class, at least 2.
        temperature: τ.
        epsilon: ε.
        alpha: Similarity within classes.
        beta: Similarity across classes; −1/(K−1), the simplex ETF, if None.

    Example:
        >>> round(etf_loss(10, 10, temperature=1.0, epsilon=0.5), 6)
        0.738606
    """
    if n_classes < 2 or per_class < 2:
        raise ValueError(
            f"needs n_classes >= 2 and per_class >= 2, got {n_classes} and {per_class}"
        )
    checks.positive_number("temperature", temperature)
    checks.positive_number("epsilon", epsilon)
    gap = alpha - (-1 / (n_classes - 1) if beta is None else beta)
    n = n_classes * per_class
    admissible = n * (per_class - 1) * (n - per_class)
    others = n * (n - 1) * (n - 2) - 2 * admissible
    exponent = gap / (temperature * epsilon)
    # Relative to the admissible ones: reversed triplets weigh e^{−2x}, all others e^{−x}.
    return math.log1p(math.exp(-2 * exponent) + others / admissible * math.exp(-exponent))


def _unit(embeddings: Tensor) -> Tensor:
    checks.matrix("embeddings", embeddings)
    values = embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32))
    if not bool(torch.isfinite(values).all()):
        raise ValueError("embeddings must be finite, found NaN or infinity")
    return torch.nn.functional.normalize(values, dim=1)


def _prepare(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
    z = _unit(embeddings)
    checks.labels("labels", labels, len(z), z.device)
    classes, codes = torch.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels must hold at least 2 classes, got {len(classes)}")
    return z, codes, len(classes)
