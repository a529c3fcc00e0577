"""Three modalities in one entropic plan, or several in plans of pairs."""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.checks import Labels
from tricouple.losses.iot import IOT
from tricouple.numeric import compute_dtype, ieee_products, never_compiled, on_host
from tricouple.ot import multimodal as plans
from tricouple.relations import Identities

Edges = Literal["triangle", "star", "joint"] | Sequence[tuple[str, str]]


class MultiModalIOT(nn.Module):
    """Inverse optimal transport of three modalities: ``KL(P̃ ‖ P)`` over triples.

    P is the entropic plan for the cost ``Σ_edges c (1 − s)`` with uniform marginals, P̃ is uniform
    on the triples that belong together: a sample without a partner in some modality has no mass.

    Args:
        sharpness: c; a number, or a tensor or ``nn.Parameter`` of one element or one per edge, in
            the order of the list or of 01, 02, 12.
        edges: The pairs in the cost. ``"triangle"``: those of three modalities. ``"star"``: the
            first modality with each other one, however many: the sum of their ``IOT``, of which
            its plan is made; a pair may lack a third sample. A list of pairs of names is a triangle
            if it has all three pairs of three, else such a sum. ``"joint"``, of three, has no plan:
            InfoNCE of each given the other two, whose scores are added.
        weights: Factors of c, one per edge; 0 takes an edge out of a triangle.
        n_iters, tol: As in ``multimodal_sinkhorn``; tol is read from a device after each product.
        inner: As there; with 5 a quarter of the products suffices.
        gradient: ``"unrolled"``, exact for the sweeps that were done, or ``"envelope"``, exact at
            convergence if every sample has a partner, with three products in all.
        group: None: a plan of three modalities is of one process.

    Above c = 35 plans are computed in float64, exact up to c = 335 and finite beyond; a sharpness
    on a device is not read, and float32 stays. It has first derivatives.

    Example:
        >>> criterion = MultiModalIOT(sharpness=10)
        >>> loss = criterion({name: torch.randn(8, 4) for name in ("image", "text", "audio")})
        >>> loss.shape
        torch.Size([])
    """

    sharpness: float | Tensor

    def __init__(
        self,
        sharpness: float | Tensor = 10.0,
        edges: Edges = "triangle",
        weights: Sequence[float] | None = None,
        n_iters: int = 10,
        tol: float | None = None,
        inner: int = 1,
        gradient: Literal["unrolled", "envelope"] = "unrolled",
        *,
        group: None = None,
    ) -> None:
        super().__init__()
        if group is not None:
            alone = "a plan of three modalities is of one process alone"
            raise ValueError(f"group={group!r}: {alone}; use IOT(group=...) for each pair")
        if isinstance(edges, str):
            checks.one_of("edges", edges, ("triangle", "star", "joint"))
        for weight in weights or ():
            checks.non_negative_number("weights", weight)
        if isinstance(sharpness, Tensor) and not isinstance(sharpness, nn.Parameter):
            self.register_buffer("sharpness", sharpness)
        else:
            self.sharpness = sharpness
        self.edges, self.weights = edges, weights
        self.sweeps = plans.ProductSweeps(n_iters, tol, gradient, inner=inner)
        self._iot = IOT(n_iters=n_iters, tol=tol, gradient=gradient)

    def extra_repr(self) -> str:
        """Its settings."""
        c = "learnable" if isinstance(self.sharpness, nn.Parameter) else f"{self.sharpness}"
        how = f"n_iters={self.sweeps.n_iters}, inner={self.sweeps.inner}"
        return f"sharpness={c}, edges={self.edges!r}, {how}, gradient={self.sweeps.gradient!r}"

    @never_compiled
    def forward(
        self, embeddings: Mapping[str, Tensor], ids: Mapping[str, Labels] | None = None
    ) -> Tensor:
        """Compute the loss of a batch, a scalar, float32 or float64.

        Args:
            embeddings: A matrix per modality, (N, d); they need not be normalised.
            ids: One integer per sample of each modality, (N,): equal ids belong together, and
                numbers of samples may differ. If None, row i of all modalities does.
        """
        names, rows = plans.check_modalities(embeddings), [*embeddings.values()]
        edges, labels = self._numbered(names), _labels(embeddings, ids)
        c = plans.edge_sharpness(self.sharpness, len(edges), rows[0])
        weights = [1.0] * len(edges) if self.weights is None else self.weights
        if len(weights) != len(edges):
            raise ValueError(f"weights={weights}: expected {len(edges)}, one per edge")
        c = c * torch.tensor(weights, dtype=c.dtype, device=c.device)
        if len(names) != 3 or len(edges) != 3:
            if 0 in weights:
                raise ValueError(f"weights={weights}: leave an edge of weight 0 out of the list")
            pairs = [(rows[x], labels[x], None, rows[y], labels[y]) for x, y in edges]
            losses = [self._iot(*p, temperature=t) for p, t in zip(pairs, 1 / c, strict=True)]
            return torch.stack(losses).sum()
        if on_host(rows[0]) and not set.intersection(*({*each.tolist()} for each in labels)):
            raise ValueError("the batch has no complete triple: no id is in all three modalities")
        c = c[[[*map(sum, edges)].index(sum(edge)) for edge in plans.EDGES]]
        loss, device = _joint if self.edges == "joint" else self._triangle, rows[0].device
        with ieee_products(device):
            value = loss(plans.unit_vectors(embeddings, c), labels, c.to(device))
        return value.to(max((compute_dtype(x.dtype) for x in rows), key=lambda d: d.itemsize))

    if TYPE_CHECKING:  # for editors and type checkers
        __call__ = forward

    def _numbered(self, names: list[str]) -> list[tuple[int, int]]:
        """The edges as numbers of modalities."""
        edges = list(combinations(names, 2)) if isinstance(self.edges, str) else self.edges
        if self.edges == "star":
            edges = edges[: len(names) - 1]
        elif isinstance(self.edges, str) and len(names) != 3:
            raise ValueError(f'edges="{self.edges}" takes three modalities, got {names}')
        different = {frozenset(edge) for edge in edges if len({*edge}) == 2}
        if len(different) < len(edges) or {*names} != {*chain(*edges)}:
            raise ValueError(f"edges must be different pairs of {names} with all of them: {edges}")
        return [(names.index(a), names.index(b)) for a, b in edges]

    def _triangle(self, units: list[Tensor], labels: list[Tensor], c: Tensor) -> Tensor:
        """−log |triples| − Σ_edges ⟨P̃_xy, S_xy⟩ − Σ_x ⟨p̃_x, f_x⟩."""
        ids = Identities.of(torch.cat(labels))
        codes = ids.anchors.split([len(label) for label in labels])
        n = [ids.sums(code, torch.ones_like(code, dtype=c.dtype)) for code in codes]
        total = (n[0] * n[1] * n[2]).sum()  # of triples
        f = plans.potentials(c, *units, self.sweeps)
        sums = [ids.sums(code, unit.to(c.dtype)) for code, unit in zip(codes, units, strict=True)]
        value = -total * total.log()
        for edge, (x, y) in enumerate(plans.EDGES):
            z, both = 3 - x - y, n[x] * n[y]
            near = n[z] * (sums[x] * sums[y]).sum(1)
            value = value - c[edge] * near.sum() - torch.dot(both[codes[z]], f[z])
        return value / total


def _joint(units: list[Tensor], labels: list[Tensor], c: Tensor) -> Tensor:
    """Σ_z of the mean over triples of −log softmax_k(S_ik + S_jk)."""
    losses = []
    for x, y in plans.EDGES:
        z = 3 - x - y
        i, j = (labels[x][:, None] == labels[y]).nonzero(as_tuple=True)
        query = units[x][i] * c[x + z - 1] + units[y][j] * c[y + z - 1]
        logs = (query.to(units[z].dtype) @ units[z].T).log_softmax(1)
        right = labels[x][i, None] == labels[z]
        losses.append(-torch.where(right, logs, 0.0).sum(dtype=c.dtype) / right.sum())
    return torch.stack(losses).sum()


def _labels(embeddings: Mapping[str, Tensor], ids: Mapping[str, Labels] | None) -> list[Tensor]:
    """An integer per sample, one tensor per modality."""
    sizes = {name: len(values) for name, values in embeddings.items()}
    if ids is None:
        if len({*sizes.values()}) > 1:
            raise ValueError(f"row i of all modalities belongs together, got {sizes}: pass ids")
        return [torch.arange(len(e), device=e.device) for e in embeddings.values()]
    if not isinstance(ids, Mapping) or {*ids} != {*sizes}:
        raise ValueError(f"ids must be a dict of {list(sizes)}, got {ids}")
    parts = embeddings.items()
    return [checks.labels(f"ids[{k!r}]", ids[k], len(e), e.device).long() for k, e in parts]
