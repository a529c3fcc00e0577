"""The last rung of linear plans: right for any sharpness, in bounded memory, and no cliff."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import tricouple as tc
from reference import with_gradients
from tricouple.memory import IN_MATRICES, Storage
from tricouple.ot.engine import LinearTriplets, Sweeps
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Coupling, Masses
from tricouple.ot.sweeps.kernels import Products
from tricouple.ot.sweeps.linear_logs import LogLinearTriplet, LogPair
from tricouple.ot.sweeps.triplet import ScaledTriplet

WAYS = {"compiled": torch.float64, "compiled, float32": torch.float32, "PyTorch": torch.float64}
SHAPES = {
    "3 within": (3, 3, True), "4 within": (4, 4, True), "30 within": (30, 30, True),
    "5 × 7": (5, 7, False), "7 × 2": (7, 2, False), "30 × 20": (30, 20, False),
}  # fmt: skip
SHARPNESS = [0.1, 10.0, 100.0, 10_000.0]


def similarities(scene: str, n: int, m: int, within: bool, dtype: torch.dtype) -> Products:
    """Unit vectors: random ones, or one that is opposite to all others."""
    generator = torch.Generator().manual_seed(n + m)
    both = torch.randn(n + m, 4, generator=generator, dtype=torch.float64)
    if scene == "outlier":
        both = 1 + 0.1 * both
        both[0] *= -1
    anchors, references = normalize(both).to(dtype).split((n, m))
    return Products(anchors, anchors if within else references)


def masses_of(scene: str, *sizes: int) -> Masses:
    generator = torch.Generator().manual_seed(sum(sizes))
    parts = [torch.rand(size, generator=generator, dtype=torch.float64) for size in sizes]
    if scene == "no mass" and min(sizes) > 4:
        for axis, part in enumerate(parts):
            part[axis] = 0.0
    if scene == "one negative" and min(sizes) > 4:  # which has no positive
        parts[0][0] = parts[1][0] = parts[-1][1:] = 0.0
    return Masses(torch.cat([part / part.sum() for part in parts]), sizes, torch.float64)


def results(coupling: Coupling, masses: Masses, rule: str) -> tuple[Tensor, Tensor, Tensor]:
    """Potentials, a gradient of them with respect to the scores, and the plan's marginals."""
    solution = coupling.solve(masses, 5, None)
    assert solution is not None
    generator = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(len(mass), generator=generator, dtype=torch.float64) * (mass > 0)
        for mass in masses.values
    ]
    gradient = torch.cat(
        [values.double().clone() for _, values, _ in GRADIENTS[rule](solution, cotangents)]
    )
    marginals = [solution.plan().marginal(axis) for axis in range(len(masses.sizes))]
    return solution.potentials, gradient, torch.cat(marginals)


@pytest.fixture
def storage(way, monkeypatch) -> Storage:
    """Where all fits, or tiles of three rows that are computed again and again."""
    if way == "PyTorch":
        monkeypatch.setattr(native, "compiled", None)
    elif native.compiled is None:
        pytest.skip("built without a C compiler")
    return Storage(True, 6 * 30, 0.0) if way == "PyTorch" else IN_MATRICES


def compare(found, wanted, dtype: torch.dtype) -> None:
    tolerance = 1e-11 if dtype == torch.float64 else 2e-6
    finite = torch.isfinite(wanted[0])
    assert torch.equal(torch.isfinite(found[0]), finite)
    error = (found[0] - wanted[0])[finite].abs().max() / max(1.0, wanted[0][finite].abs().max())
    assert error <= tolerance
    assert (found[1] - wanted[1]).norm() <= 10 * tolerance * max(1e-3, wanted[1].norm())
    assert (found[2] - wanted[2]).abs().max() <= tolerance


@pytest.mark.parametrize("scene", ["random", "outlier", "no mass", "one negative"])
@pytest.mark.parametrize("c", SHARPNESS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_triplets_are_those_of_whole_matrices_of_logarithms(scene, c, shape, way, storage):
    n, m, within = SHAPES[shape]
    source = similarities(scene, n, m, within, WAYS[way])
    masses = masses_of(scene, n, m, m)
    careful = LinearTriplets(within).careful(source, c)
    ours = LogLinearTriplet(source, c, within=within, storage=storage)
    for rule in ("unrolled", "envelope"):
        compare(results(ours, masses, rule), results(careful, masses, rule), WAYS[way])


@pytest.mark.parametrize("scene", ["random", "outlier", "no mass"])
@pytest.mark.parametrize("c", [-10.0, *SHARPNESS])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_pairs_are_those_of_dense_sweeps(scene, c, shape, way, storage):
    n, m, within = SHAPES[shape]
    source = similarities(scene, n, m, within, WAYS[way])
    masses = masses_of(scene, n, m)
    scores = (source.widened().matrix() * c).requires_grad_()
    logs = scores.masked_fill(torch.eye(n, m, dtype=torch.bool), -torch.inf) if within else scores
    log_rows, log_columns = (mass.log() for mass in masses.values)
    g = torch.zeros_like(log_columns)
    for _ in range(5):
        f = log_rows - torch.logsumexp(logs + g, 1)
        g = log_columns - torch.logsumexp(logs + f[:, None], 0)
    potentials = torch.cat([f, g])
    generator = torch.Generator().manual_seed(0)
    masses_and_signs = torch.cat(
        [torch.randn(k, generator=generator, dtype=torch.float64) for k in (n, m)]
    )
    finite = masses.marginals > 0
    (gradient,) = torch.autograd.grad((masses_and_signs * potentials)[finite].sum(), scores)
    plan = torch.exp(logs + f[:, None] + g)
    marginals = torch.cat([plan.sum(1), plan.sum(0)])
    wanted = potentials.detach(), gradient.nan_to_num(0.0), marginals.detach()
    ours = LogPair(source, c, within=within, storage=storage)
    compare(results(ours, masses, "unrolled"), wanted, WAYS[way])


def batches(n: int) -> dict[str, Tensor]:
    """An easy batch, and those that took the fast sums' digits."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int, scale: float = 1.0) -> Tensor:
        return scale * normalize(torch.randn(count, 64, generator=generator))

    centre, other = rows(1), rows(1)
    outlier = centre + rows(n, 0.3)
    outlier[0] = -outlier[0]
    clusters = torch.where(torch.arange(n)[:, None] % 2 == 0, centre, other) + rows(n, 0.3)
    return {
        "easy": rows(n), "outlier": outlier, "collapsed": centre + rows(n, 0.1),
        "duplicated": rows(n // 4).repeat(4, 1), "clustered": clusters,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["outlier", "collapsed", "duplicated", "clustered"])
@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@pytest.mark.parametrize("c", [10.0, 100.0])
def test_hard_batches_are_exact(name, memory, c):
    n = 200
    labels = torch.arange(n) % (n // 2)
    found = []
    for dtype, mode in ((torch.float32, memory), (torch.float64, "matrices")):
        leaf = batches(n)[name].to(dtype).requires_grad_()
        loss = tc.NegMMIOT(1.0, 1 / c, memory=mode)(leaf, labels)
        found.append(with_gradients(loss, [leaf]))
    (value, gradient), (wanted, wanted_gradient) = found
    assert abs(float(value) - float(wanted)) <= 1e-5 * max(1.0, float(wanted))
    assert (gradient.double() - wanted_gradient).norm() <= 1e-5 * wanted_gradient.norm()


@pytest.mark.skipif(native.compiled is None, reason="built without a C compiler")
def test_what_is_not_trusted_is_given_up_after_one_sweep(monkeypatch):
    """Two passes over kernels that halves of matrices hold, and over larger ones in PyTorch."""
    seen: list[int] = []
    source = similarities("outlier", 1100, 1100, True, torch.float32)
    masses = Masses(torch.full((3300,), 1 / 1100, dtype=torch.float64), (1100,) * 3, torch.float32)
    how = Sweeps(10, None, "unrolled")
    for compiled in (native.compiled, None):
        monkeypatch.setattr(native, "compiled", compiled)
        fastest = next(LinearTriplets(within=True).couplings(source, 30.0, how))
        assert isinstance(fastest, ScaledTriplet)
        kind, through = type(fastest.kernels), type(fastest.kernels).through
        monkeypatch.setattr(kind, "through", lambda *args, do=through: seen.append(0) or do(*args))
        assert fastest.solve(masses, 10, None) is None
        assert len(seen) == 2
        seen.clear()


@pytest.mark.skipif(native.compiled is None, reason="built without a C compiler")
def test_no_batch_is_a_cliff():
    # Ninety times an easy batch before there were logarithms a tile at a time; now seven.
    n = 512
    labels = torch.arange(n) % (n // 2)

    def seconds(rows: Tensor) -> float:
        times = []
        for _ in range(3):
            leaf = rows.clone().requires_grad_()
            start = time.process_time()
            tc.NegMMIOT(1.0, 0.01)(leaf, labels).backward()
            times.append(time.process_time() - start)
        return min(times)

    made = batches(n)
    assert seconds(made["outlier"]) <= 20 * seconds(made["easy"])
