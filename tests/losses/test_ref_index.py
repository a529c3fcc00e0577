"""ref_index: anchors among the references do not meet themselves, as within one set."""

import math

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import (
    cosine,
    dense_logs,
    positive_pairs,
    relative_error,
    with_gradients,
)

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
COUPLED = {
    "neg_mmiot": lambda **k: tc.NegMMIOT(0.5, 0.4, **k),
    "sharp": lambda **k: tc.NegMMIOT(0.1, 0.1, **k),
    "log_sigmoid": lambda **k: tc.NegMMIOT(0.5, 0.4, shaping="log_sigmoid", kernel_tol=1e-9, **k),
    "hinge": lambda **k: tc.NegMMIOT(0.5, 0.4, shaping="hinge", **k),
    "exponential": lambda **k: tc.NegMMIOT(0.5, 0.4, shaping="exponential", **k),
    "push_pull": lambda **k: tc.PushPull(0.5, 0.4, 0.8, **k),
    "push_pull_exponential": lambda **k: tc.PushPull(0.5, 0.4, shaping="exponential", **k),
    "iot": lambda **k: tc.IOT(0.4, **k),
    "uniformity": lambda **k: tc.IOT(0.4, uniformity=0.5, **k),
}
OTHERS = {
    "info_nce": lambda: tc.InfoNCE(0.2),
    "inva_spread": lambda: tc.InvaSpread(0.2),
    "siglip": lambda: tc.SigLIP(0.2, -3.0),
    "dbot": lambda: tc.DBOT(0.2, lower=0.9, upper=1.1),
}
EVERY = COUPLED | OTHERS
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
    tolerance = 1e-8 if name == "log_sigmoid" else 1e-11
    assert relative_error(found[0], wanted[0]) <= tolerance
    assert relative_error(found[1], wanted[1]) <= tolerance


@pytest.mark.parametrize("name", EVERY)
def test_anchors_that_are_no_reference_change_nothing(name):
    x, references = draw(5, 0), draw(8, 1)
    across = {"ref_emb": references, "ref_labels": REF_LABELS}
    criterion = EVERY[name]()
    found = criterion(x, ANCHORS, **across, ref_index=[-1] * 5)
    tolerance = 1e-8 if name == "log_sigmoid" else 1e-11
    assert relative_error(found, criterion(x, ANCHORS, **across)) <= tolerance


SOME = torch.tensor([5, 3, -1, 1, 2])


def kept(entries):
    """Without those in which an anchor meets itself."""
    return [entry for entry in entries if int(OWN[entry[0]]) not in entry[1:]]


@pytest.mark.parametrize("variant", ["formula", "published"])
def test_fused_gromov_forbids_the_anchor(variant):
    x, references = draw(5, 0).requires_grad_(), draw(8, 1)
    across = {"ref_emb": references, "ref_labels": REF_LABELS, "ref_index": OWN}
    criterion = tc.FusedGromov(0.3, alpha=0.0, n_outer=1, variant=variant)
    found = criterion(x, ANCHORS, **across)
    assert torch.autograd.grad(found, x)[0].isfinite().all()
    if variant == "formula":
        cost = 1 - cosine(x.detach(), references)
        cost[OWN >= 0, OWN[OWN >= 0]] = math.inf
        plan = dense_logs(cost, 0.3, 5) + math.log(5)
        pairs = kept(positive_pairs(ANCHORS, REF_LABELS, None))
        wanted = -sum(plan[pair] for pair in pairs) / len(pairs)
        assert relative_error(found, wanted) <= 1e-12


def test_class_marginals_and_diagnostics_know_it():
    x, references = draw(5, 0), draw(8, 1)
    across = {"ref_emb": references, "ref_labels": REF_LABELS, "ref_index": OWN}
    criterion = tc.NegMMIOT(0.5, 0.4, marginals="classes", n_iters=500)
    assert criterion(x, ANCHORS, **across) > 0
    found = criterion.diagnostics()
    assert found["marginal_error"] < 1e-6
    assert 0 <= found["repulsion_on_hardest_tenth"] <= 1


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
