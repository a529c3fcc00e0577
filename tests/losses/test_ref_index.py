"""ref_index: anchors among the references do not meet themselves, as within one set."""

import math

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import (
    admissible_triplets,
    cosine,
    coupling_loss,
    mm_sinkhorn,
    positive_pairs,
    relative_error,
    triplet_cost,
    uniform_marginals,
    uniform_on,
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


def kept(entries):
    """Without those in which an anchor meets itself."""
    return [entry for entry in entries if int(OWN[entry[0]]) not in entry[1:]]


def dense_loss(name, x, references, marginals):
    similarity = cosine(x, references)
    forbidden = torch.zeros(5, 8, dtype=torch.bool)
    forbidden[OWN >= 0, OWN[OWN >= 0]] = True
    if name in ("neg_mmiot", "exponential"):
        psi = tc.shaping.resolve("linear" if name == "neg_mmiot" else name)
        cost = triplet_cost(similarity, 0.5, False, psi)
        cost = torch.where(forbidden[:, :, None] | forbidden[:, None, :], math.inf, cost)
        target = uniform_on(kept(admissible_triplets(ANCHORS, REF_LABELS)), (5, 8, 8))
        return coupling_loss(cost, 0.4, target, marginals, 10)
    if name == "iot":
        pairs = uniform_on(kept(positive_pairs(ANCHORS, REF_LABELS, None)), (5, 8))
        cost = torch.where(forbidden, math.inf, 1 - similarity)
        return coupling_loss(cost, 0.4, pairs, marginals, 10)
    triplets = kept(admissible_triplets(ANCHORS, REF_LABELS))
    pull, push = (uniform_on([(t[0], t[axis]) for t in triplets], (5, 8)) for axis in (1, 2))
    costs = [torch.where(forbidden, math.inf, sign * similarity / 0.5) for sign in (-1, 1)]
    return coupling_loss(costs[0], 0.4, pull, marginals, 10) + coupling_loss(
        costs[1], 0.8, push, marginals, 10
    )


@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize("marginals", ["uniform", "target"])
@pytest.mark.parametrize("name", ["neg_mmiot", "exponential", "push_pull", "iot"])
def test_loss_equals_dense_loss(name, marginals):
    x, references = draw(5, 0).requires_grad_(), draw(8, 1).requires_grad_()
    across = {"ref_emb": references, "ref_labels": REF_LABELS, "ref_index": OWN}
    loss = COUPLED[name](marginals=marginals)(x, ANCHORS, **across)
    found = with_gradients(loss, [x, references])
    wanted = with_gradients(dense_loss(name, x, references, marginals), [x, references])
    assert relative_error(found[0], wanted[0]) <= 1e-12
    assert relative_error(found[1], wanted[1]) <= 1e-11


def test_info_nce_leaves_the_anchor_out_of_its_softmax():
    # An anchor that is no reference meets all of them.
    x, references = draw(5, 0).requires_grad_(), draw(8, 1)
    index = [5, 3, -1, 1, 2]
    across = {"ref_emb": references, "ref_labels": REF_LABELS, "ref_index": index}
    scores = cosine(x, references) / 0.2
    total = 0.0
    for i, own in enumerate(index):
        others = [j for j in range(8) if j != own]
        near = [j for j in others if REF_LABELS[j] == ANCHORS[i]]
        logs = scores[i, near] - torch.logsumexp(scores[i, others], 0)
        total = total - logs.mean() / 5
    found = with_gradients(tc.InfoNCE(0.2)(x, ANCHORS, **across), [x])
    wanted = with_gradients(total, [x])
    assert relative_error(found[0], wanted[0]) <= 1e-12
    assert relative_error(found[1], wanted[1]) <= 1e-11


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
        plan = mm_sinkhorn(cost, 0.3, uniform_marginals((5, 8)), 5)[0] + math.log(5)
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


def test_streamed_and_stored_agree():
    x, labels = draw(90, 0).float(), torch.arange(90) // 3
    options = {"ref_emb": x, "ref_labels": labels, "ref_index": torch.arange(40)}
    losses = [
        tc.NegMMIOT(memory=memory)(x[:40], labels[:40], **options)
        for memory in ("matrices", "streamed")
    ]
    assert relative_error(losses[1], losses[0]) <= 1e-5


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


@pytest.mark.parametrize("name", COUPLED)
def test_couplings_need_all_anchors_among_the_references_or_none(name):
    with pytest.raises(ValueError, match=r"ref_index is -1 for anchor 2, but not for all"):
        COUPLED[name]()(
            draw(5, 0),
            ANCHORS,
            ref_emb=draw(8, 1),
            ref_labels=REF_LABELS,
            ref_index=[5, 3, -1, 1, 2],
        )


def test_it_needs_labels_and_references():
    with pytest.raises(ValueError, match=r"ref_index .*needs ref_emb and labels"):
        tc.NegMMIOT()(draw(9, 0), LABELS, ref_index=list(range(9)))
    with pytest.raises(ValueError, match=r"ref_index .*not indices_tuple"):
        tc.NegMMIOT()(draw(5, 0), indices_tuple=([0], [1], [2]), ref_emb=draw(8, 1), ref_index=OWN)
    with pytest.raises(ValueError, match="ref_index have no meaning for VICReg"):
        tc.VICReg()(draw(5, 0), ANCHORS, ref_emb=draw(8, 1), ref_labels=REF_LABELS, ref_index=OWN)
