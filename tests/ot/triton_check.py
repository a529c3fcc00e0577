"""Run by ``test_triton.py`` with ``TRITON_INTERPRET=1``: Triton's sums beside PyTorch's."""

import torch
from torch.nn.functional import normalize

from tricouple import numeric
from tricouple.memory import Storage
from tricouple.numeric import PulledGradient, pull
from tricouple.ot.sweeps.contract import Masses
from tricouple.ot.sweeps.kernels import Products
from tricouple.ot.sweeps.linear_logs import LogLinearTriplet, LogPair
from tricouple.ot.sweeps.triton_sums import TritonTiles

STREAMED = Storage(streamed=True, tile_entries=1 << 16, budget=1.0)


def solved(kind, source, within, tiles):
    coupling = kind(source, 1.0, within=within, storage=STREAMED)
    if tiles is not None:
        coupling.tiles = tiles
    n, m = source.shape
    sizes = (n, m, m) if kind is LogLinearTriplet else (n, m)
    generator = torch.Generator().manual_seed(1)
    masses = [torch.rand(size, generator=generator).double() for size in sizes]
    masses[1][3] = 0.0  # a sample without mass
    flat = torch.cat([mass / mass.sum() for mass in masses])
    solution = coupling.solve(Masses(flat, sizes, torch.float64), 2, None)
    cotangents = torch.cos(torch.arange(len(flat))).double().split(sizes)
    gradient = solution.history.adjoint(cotangents)
    assert isinstance(gradient, PulledGradient) == (tiles is not None)
    patches = [patch._replace(values=patch.values.clone()) for patch in gradient]
    entries = torch.cat([patch.values for patch in patches])
    pulled = patches if tiles is None else gradient
    # The scores have taken in the factor.
    (rows, columns), slope = pull(pulled, 1.0, source.anchors, source.references, slope=True)
    return solution.potentials, entries, rows, columns, slope


def main():
    numeric._HOSTS = frozenset()
    worst = 0.0
    for kind in (LogPair, LogLinearTriplet):
        for n, m, d, sharpness in ((66, 66, 8, 1000.0), (37, 71, 40, 100.0)):
            torch.manual_seed(0)
            x = normalize(torch.randn(n, d), dim=1)
            y = x if n == m else normalize(torch.randn(m, d), dim=1)
            source = Products(x, y).scaled(sharpness)
            # The same float32 numbers for both.
            source = Products(source.anchors.float().double(), source.references)
            within = n == m
            tiles = TritonTiles(source, within=within, storage=STREAMED)
            wanted = solved(kind, source, within, None)
            found = solved(kind, source, within, tiles)
            finite = wanted[0].isfinite()
            assert torch.equal(finite, found[0].isfinite())
            # A product has an error of a few units in its last place: c · 1e-7 in the exponent.
            errors = [(found[0] - wanted[0])[finite].abs().max() / sharpness]
            for one, other in zip(found[1:-1], wanted[1:-1], strict=True):
                errors.append((one - other).norm() / other.norm() / sharpness)
            # The slope is a sum of rows that cancel.
            size = (source.anchors * wanted[2]).abs().sum()
            errors.append((found[-1] - wanted[-1]).abs() / size / sharpness)
            worst = max(worst, *map(float, errors))
            assert worst < 2e-6, (kind, n, m, sharpness, errors)
    print(f"worst {worst:.1e}")


main()
