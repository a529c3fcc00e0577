"""Which couplings the engine tries, in which order: the one place that decides it."""

import pytest
import torch

from tricouple.ot import engine
from tricouple.ot.engine import LinearTriplets, LogSigmoidTriplets, Pairs, ShapedTriplets, Sweeps
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.kernels import Matrix, Products

SMALL, LARGE = 40, 1030  # on both sides of what the compiled module is for


def tried(problem, source, memory="auto", budget=1e9) -> list[str]:
    """Names of the couplings and of their kernels; "wide" where their dtype is not the source's."""
    how = Sweeps(10, None, "unrolled", memory=memory, memory_budget=budget)
    names = []
    for coupling in problem.couplings(source, 5.0, how):
        kernels = getattr(coupling, "kernels", None)
        wide = coupling.dtype != source.like.dtype
        parts = [type(coupling), *([] if kernels is None else [type(kernels)])]
        names.append(" ".join([*(part.__name__ for part in parts), *(["wide"] if wide else [])]))
    return names


def products(n: int, m: int | None = None) -> Products:
    torch.manual_seed(0)
    anchors = torch.nn.functional.normalize(torch.randn(n, 4), dim=1)
    if m is None:
        return Products(anchors, anchors)
    return Products(anchors, torch.nn.functional.normalize(torch.randn(m, 4), dim=1))


def rungs(kernels: str) -> list[str]:
    """In the digits of the batch, in more, and by logarithms."""
    return [kernels, f"{kernels} wide", "Log{} wide"]


CASES = {
    "small": (True, products(SMALL), "auto", rungs("Native{} NativeKernels")),
    "small across": (False, products(SMALL, 30), "auto", rungs("Native{} NativeKernels")),
    "small matrix": (
        True, Matrix(products(SMALL).matrix()), "auto", rungs("Native{} NativeKernels")
    ),
    "large": (True, products(LARGE), "auto", rungs("Scaled{} SymmetricKernels")),
    "large across": (False, products(LARGE, LARGE), "auto", rungs("Scaled{} LinearKernels")),
    "large matrix": (
        True, Matrix(products(LARGE).matrix()), "streamed", rungs("Scaled{} LinearKernels")
    ),
    "streamed": (True, products(SMALL), "streamed", rungs("Scaled{} SymmetricKernels")),
    "streamed across": (False, products(SMALL, 30), "streamed", rungs("Scaled{} LinearKernels")),
}  # fmt: skip


@pytest.mark.skipif(native.compiled is None, reason="built without a compiler")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("problem", "kind"), [(Pairs, "Pair"), (LinearTriplets, "Triplet")])
def test_couplings_are_tried_from_the_fastest_to_the_surest(case, problem, kind):
    within, source, memory, wanted = CASES[case]
    linear = kind if kind == "Pair" else "Linear" + kind
    surest = wanted[-1].format(linear)
    assert tried(problem(within), source, memory) == [
        *(name.format(kind) for name in wanted[:-1]),
        surest,
    ]


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_without_a_compiler_there_are_neither_compiled_sweeps_nor_halves(n, monkeypatch):
    monkeypatch.setattr(native, "compiled", None)
    wanted = ["ScaledTriplet LinearKernels", "ScaledTriplet LinearKernels wide"]
    assert tried(LinearTriplets(within=True), products(n)) == [*wanted, "LogLinearTriplet wide"]


def test_halves_fit_where_whole_matrices_would_not():
    # Two matrices of float32 are 2·4·N² bytes, and halves of them half of that.
    how = Sweeps(10, None, "unrolled", memory_budget=4 * LARGE**2)
    assert engine._storage(products(LARGE, LARGE), False, how, matrices=2).streamed
    if native.compiled is not None:
        assert not engine._storage(products(LARGE), True, how, matrices=2).streamed


def test_other_shapings_have_couplings_of_their_own():
    smooth, source = LogSigmoidTriplets(True, 0.5, 1e-4), products(12)
    kind = "TermKernels" if native.compiled is None else "NativeTermKernels"
    scaled = f"LogSigmoidTriplet {kind}"
    apart = [] if native.compiled is None else ["ApartTriplet NativeTermKernels wide"]
    expected = [scaled, f"{scaled} wide", *apart, "AnchorTriplet wide"]  # streamed: none is refused
    assert tried(smooth, source) == tried(smooth, source, "streamed") == expected
    sharp = LogSigmoidTriplets(True, 0.01, 1e-4)  # e^{−m} is beyond float32
    assert tried(sharp, source) == expected[1:]
    assert tried(ShapedTriplets(True, 0.5, torch.neg, 1e9), source) == ["AnchorTriplet wide"]
