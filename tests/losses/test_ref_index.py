"""ref_index: anchors among the references do not meet themselves, as within one set."""

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import assert_same, relative_error, with_gradients

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
# Those without a dense reference, with which tests/dense compares the others.
EVERY = {
    "uniformity": lambda: tc.IOT(0.4, uniformity=0.5),
    "info_nce": lambda: tc.InfoNCE(0.2),
    "inva_spread": lambda: tc.InvaSpread(0.2),
    "siglip": lambda: tc.SigLIP(0.2, -3.0),
    "dbot": lambda: tc.DBOT(0.2, lower=0.9, upper=1.1),
}
# Anchors are references, in another order; references are more.
REF_LABELS = torch.tensor([1, 0, 2, 2, 1, 0, 0, 2])
ANCHORS = torch.tensor([0, 2, 1, 0, 2])
OWN = torch.tensor([5, 3, 4, 1, 2])


@pytest.mark.parametrize("name", EVERY)
def test_a_set_against_itself_is_one_set(name):
    x = draw(9, 0).requires_grad_()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    across = {"ref_emb": x[order], "ref_labels": LABELS[order], "ref_index": order.argsort()}
    criterion = EVERY[name]()
    found = with_gradients(criterion(x, LABELS, **across), [x])
    wanted = with_gradients(criterion(x, LABELS), [x])
    assert_same(found, wanted, 1e-11)


@pytest.mark.parametrize("name", EVERY)
def test_anchors_that_are_no_reference_change_nothing(name):
    x, references = draw(5, 0), draw(8, 1)
    across = {"ref_emb": references, "ref_labels": REF_LABELS}
    criterion = EVERY[name]()
    found = criterion(x, ANCHORS, **across, ref_index=[-1] * 5)
    assert relative_error(found, criterion(x, ANCHORS, **across)) <= 1e-11


def test_fused_gromov_forbids_the_anchor():
    """Without geometry it has the gradient of IOT."""
    x = draw(5, 0).requires_grad_()
    across = {"ref_emb": draw(8, 1), "ref_labels": REF_LABELS, "ref_index": OWN}
    slopes = (
        torch.autograd.grad(criterion(x, ANCHORS, **across), x)[0]
        for criterion in (tc.FusedGromov(0.3, alpha=0.0, n_outer=1), tc.IOT(0.3, n_iters=5))
    )
    assert relative_error(*slopes) <= 1e-12


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ([0, 1, 2], r"must hold .* shape \(5,\), got \(3,\)"),
        ([5, 3, -2, 1, 2], r"between 0 and 7, or -1 .* got -2"),
        ([5, 3, 8, 1, 2], r"between 0 and 7, .* … 8"),
        ([5, 3, -1, 5, 2], r"several anchors are to be reference 5"),
        ([0, 3, -1, 1, 2], r"anchor 0 is reference 0, but their labels are 0 and 1"),
        ([0.5] * 5, "integers"),
    ],
)
def test_bad_indices_are_named(index, found):
    with pytest.raises((ValueError, TypeError), match=f"ref_index.*{found}"):
        tc.NegMMIOT()(
            draw(5, 0), ANCHORS, ref_emb=draw(8, 1), ref_labels=REF_LABELS, ref_index=index
        )


def test_it_needs_labels_and_references():
    with pytest.raises(ValueError, match=r"ref_index .*needs ref_emb and labels"):
        tc.NegMMIOT()(draw(9, 0), LABELS, ref_index=list(range(9)))
    with pytest.raises(ValueError, match=r"ref_index .*not indices_tuple"):
        tc.NegMMIOT()(draw(5, 0), indices_tuple=([0], [1], [2]), ref_emb=draw(8, 1), ref_index=OWN)
    with pytest.raises(ValueError, match="ref_index have no meaning for VICReg"):
        tc.VICReg()(draw(5, 0), ANCHORS, ref_emb=draw(8, 1), ref_labels=REF_LABELS, ref_index=OWN)
