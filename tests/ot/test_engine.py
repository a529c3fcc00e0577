"""Which couplings the engine tries, in which order: the one place that decides it."""

import pytest
import torch

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


HALVES = ["Scaled{} SymmetricKernels", "Scaled{} LinearKernels", "Log{} wide"]
CASES = {
    "small": (True, products(SMALL), "auto", ["Native{} NativeKernels", "Log{} wide"]),
    "small across": (
        False, products(SMALL, 30), "auto", ["Native{} NativeKernels", "Log{} wide"]
    ),
    "small matrix": (
        True, Matrix(products(SMALL).matrix()), "auto", ["Native{} NativeKernels", "Log{} wide"]
    ),
    "large": (True, products(LARGE), "auto", HALVES),
    "large across": (
        False, products(LARGE, LARGE), "auto", ["Scaled{} LinearKernels", "Log{} wide"]
    ),
    "large matrix": (
        True, Matrix(products(LARGE).matrix()), "streamed",
        ["Scaled{} LinearKernels", "Log{} wide"],
    ),
    "streamed": (
        True, products(SMALL), "streamed",
        ["Scaled{} SymmetricKernels", "Scaled{} SymmetricKernels wide"],
    ),
    "streamed across": (
        False, products(SMALL, 30), "streamed",
        ["Scaled{} LinearKernels", "Scaled{} LinearKernels wide"],
    ),
}  # fmt: skip


@pytest.mark.skipif(native.compiled is None, reason="built without a compiler")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("problem", "kind"), [(Pairs, "Pair"), (LinearTriplets, "Triplet")])
def test_couplings_are_tried_from_the_fastest_to_the_surest(case, problem, kind):
    within, source, memory, wanted = CASES[case]
    assert tried(problem(within), source, memory) == [name.format(kind) for name in wanted]


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_without_a_compiler_there_are_neither_compiled_sweeps_nor_halves(n, monkeypatch):
    monkeypatch.setattr(native, "compiled", None)
    wanted = ["ScaledTriplet LinearKernels", "LogTriplet wide"]
    assert tried(LinearTriplets(within=True), products(n)) == wanted


def test_halves_fit_where_whole_matrices_would_not():
    # Two matrices of float32 are 2·4·N² bytes, and halves of them half of that.
    budget = 4 * LARGE**2
    streamed = tried(LinearTriplets(within=False), products(LARGE, LARGE), budget=budget)
    assert streamed[-1] == "ScaledTriplet LinearKernels wide"
    if native.compiled is not None:
        assert tried(LinearTriplets(within=True), products(LARGE), budget=budget)[-1] == (
            "LogTriplet wide"
        )


def test_other_shapings_have_couplings_of_their_own():
    smooth, source = LogSigmoidTriplets(True, 0.5, 1e-4), products(12)
    assert tried(smooth, source) == ["ScaledTriplet TermKernels", "LogTriplet wide"]
    streamed = ["ScaledTriplet TermKernels", "ScaledTriplet TermKernels wide"]
    assert tried(smooth, source, "streamed") == streamed
    assert tried(ShapedTriplets(True, 0.5, torch.neg, 1e9), source) == ["AnchorTriplet wide"]
