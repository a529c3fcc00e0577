"""Pair matrices and weights of anchors: labels where they come from labels, else the reference."""

import math

import pytest
import torch

import tricouple as tc
from batches import DENSE, Batch, assert_right, batch, errors, listed, scales, with_gradient
from conftest import draw
from tricouple.ot import dense
from tricouple.shaping import Hinge

# Every loss that takes pairs, with options that take other paths of it.
LOSSES = {
    "InfoNCE": ("InfoNCE", {}),
    "IOT": ("IOT", {"n_iters": 4}),
    "IOT-target": ("IOT", {"n_iters": 4, "marginals": "target"}),
    "PushPull": ("PushPull", {"n_iters": 4}),
    "PushPull-all": ("PushPull", {"n_iters": 4, "negatives": "all", "marginals": "target"}),
    "PushPull-bent": ("PushPull", {"n_iters": 4, "shaping": "exponential"}),
    "NegMMIOT": ("NegMMIOT", {"n_iters": 4}),
    "NegMMIOT-target": ("NegMMIOT", {"n_iters": 4, "marginals": "target"}),
    "NegMMIOT-hinge": ("NegMMIOT", {"n_iters": 4, "shaping": Hinge(0.3)}),
    "NegMMIOT-exponential": ("NegMMIOT", {"n_iters": 2, "shaping": "exponential"}),
}
# Those whose target is that of labels, without a dense reference.
OTHERS = {
    "InvaSpread": tc.InvaSpread,
    "DBOT": tc.DBOT,
    "SigLIP": tc.SigLIP,
    "FusedGromov": tc.FusedGromov,
    "uniformity": lambda: tc.IOT(uniformity=0.5),
    "log-sigmoid": lambda: tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-9),
    "both": lambda: tc.NegMMIOT(gradient="implicit", n_iters=60, sharpness=1),
}
KINDS = ("random", "singletons", "two sets", "some in references")
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(name, c=10.0):
    """A loss, and its reference with the same settings."""
    module, options = LOSSES[name]
    options = scales(module, c) | options
    return getattr(tc, module)(**options), lambda *a, **k: DENSE[module](*a, **options, **k)


def matrix(there: Batch) -> torch.Tensor:
    """Which pairs share a label; the anchor itself is one of them."""
    others = there.labels if there.ref_emb is None else there.ref_labels
    return there.labels[:, None] == others


def drawn(n: int, m: int, seed: int = 0) -> torch.Tensor:
    """Weights over four orders of magnitude, two thirds of them zero, and a row without any."""
    generator = torch.Generator().manual_seed(seed)
    found = 10 ** (4 * torch.rand(n, m, generator=generator, dtype=torch.float64) - 2)
    found[torch.rand(n, m, generator=generator) < 0.67] = 0
    found[n // 2] = 0
    return found


def anchor_weights(n: int) -> torch.Tensor:
    """Weights of anchors; the second is not to count."""
    found = draw(n, 7)[:, 0].abs()
    found[1] = 0
    return found


def placed(there: Batch) -> dict:
    """The arguments of a call beside labels."""
    return {"ref_emb": there.ref_emb, "ref_index": there.own}


@every_kind
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("name", [*LOSSES, *OTHERS])
def test_a_matrix_of_equal_labels_is_the_labels(name, weighted, kind):
    criterion = OTHERS[name]() if name in OTHERS else made(name)[0]
    if name == "FusedGromov" and kind in KINDS[:2]:
        return  # it needs two sets
    there = batch(kind, 16).to(torch.float64)
    weights = {"weights": anchor_weights(16)} if weighted else {}
    wanted = with_gradient(there.loss(criterion, **weights), there.leaves)
    factor = 1 if name == "SigLIP" else 3  # whose weights are factors of terms
    for pairs in (matrix(there), matrix(there).float() * factor):
        value = criterion(there.embeddings, pairs=pairs, **placed(there), **weights)
        assert max(errors(with_gradient(value, there.leaves), wanted, 10.0, 16)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("n", [9, 70])
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize("name", LOSSES)
def test_weights_of_pairs_and_anchors_are_those_of_the_reference(name, across, n, dtype):
    if n == 70 and name == "NegMMIOT-exponential":
        n = 20
    criterion, reference = made(name)
    there = batch("two sets" if across else "random", n).to(torch.float64)
    pairs, weights = drawn(n, n + 3 if across else n), anchor_weights(n)
    given = {"pairs": pairs, "weights": weights}
    wanted = reference(there.embeddings, None, there.ref_emb, **given)
    wanted = with_gradient(wanted, there.leaves)
    there = there.to(dtype)
    value = criterion(there.embeddings, ref_emb=there.ref_emb, **given)
    found = with_gradient(value, there.leaves)
    assert_right(found, wanted, 10.0, n, dtype)


@pytest.mark.parametrize("number", [None, 3, 4], ids=["labels", "triplets", "pairs"])
@pytest.mark.parametrize("name", LOSSES)
def test_weights_of_anchors_with_labels_and_lists(name, number):
    criterion, reference = made(name)
    there = (batch("random", 10) if number is None else listed(10, number)).to(torch.float64)
    weights = anchor_weights(10)
    wanted = with_gradient(there.dense(reference, weights=weights), there.leaves)
    found = with_gradient(there.loss(criterion, weights=3 * weights), there.leaves)
    assert max(errors(found, wanted, 10.0, 10)) < 1e-12


@pytest.mark.parametrize("name", ["InfoNCE", "InvaSpread"])
def test_a_mean_over_anchors_becomes_a_weighted_mean(name):
    criterion, x, y = getattr(tc, name)(), draw(6, 0), torch.tensor([0, 0, 1, 1, 0, 1])
    each = torch.stack([criterion(x, y, weights=row) for row in torch.eye(6)])
    assert torch.allclose(criterion(x, y), each.mean())
    weights = torch.arange(6.0)
    assert torch.allclose(criterion(x, y, weights=weights), weights.double() @ each / 15)


@pytest.mark.parametrize("name", ["InfoNCE", "IOT", "PushPull", "NegMMIOT", "DBOT", "FusedGromov"])
def test_both_directions_take_the_matrix_and_its_transposed(name):
    x, y = draw(8, 0).requires_grad_(), draw(10, 1).requires_grad_()
    criterion, pairs, tau = getattr(tc, name)(), drawn(8, 10), torch.tensor(0.3)
    learnt = tau.clone().requires_grad_()
    ways = [
        criterion(x, ref_emb=y, pairs=pairs, temperature=learnt),
        criterion(y, ref_emb=x, pairs=pairs.T, temperature=learnt),
    ]
    wanted = with_gradient(sum(ways) / 2, [x, y, learnt])
    sharpness = (criterion.sharpness * getattr(criterion, criterion.scale) / tau).requires_grad_()
    found = tc.BothDirections(criterion)(x, y, pairs=pairs, sharpness=sharpness)
    found = with_gradient(found, [x, y, sharpness])
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    assert torch.allclose(found[1][:-1], wanted[1][:-1], atol=1e-6)
    by_factor = -wanted[1][-1] * tau / sharpness.detach()  # c is proportional to 1/τ
    assert torch.allclose(found[1][-1], by_factor, rtol=1e-5)
    weights = anchor_weights(8)
    ways = [
        criterion(one, ref_emb=other, pairs=w, weights=weights)
        for one, other, w in ((x, y[:8], pairs[:, :8]), (y[:8], x, pairs[:, :8].T))
    ]
    found = tc.BothDirections(criterion)(x, y[:8], pairs=pairs[:, :8], weights=weights)
    assert torch.allclose(found, sum(ways) / 2)


def test_streamed_compiled_and_after_a_cast_it_is_the_same():
    x, pairs = draw(80, 0), drawn(80, 80)
    wanted = tc.NegMMIOT()(x, pairs=pairs)
    assert torch.allclose(tc.NegMMIOT(memory="streamed")(x, pairs=pairs), wanted)
    compiled = torch.compile(tc.NegMMIOT(), backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x, pairs=pairs, weights=torch.ones(80)), wanted)
    half = pairs.bfloat16()
    assert torch.equal(tc.IOT()(x, pairs=half), tc.IOT()(x, pairs=half.double()))


def test_labels_and_weights_of_a_class_are_class_marginals():
    x, y = draw(12, 0), torch.tensor([0] * 7 + [3] * 3 + [4] * 2)
    weights = tc.class_weights(y)
    assert weights[[1, 2]].tolist() == [0, 0]
    assert weights[[0, 3, 4]].mean() == pytest.approx(1)
    assert torch.allclose(weights[y] * torch.bincount(y)[y], weights[0] * 7)
    wanted = tc.InfoNCE(marginals="classes")(x, y)
    assert torch.allclose(tc.InfoNCE()(x, y, weights=weights[y]), wanted)
    assert torch.allclose(wanted, dense.info_nce(x, y, temperature=0.1, marginals="classes"))
    each = [tc.InfoNCE()(x, y, weights=y == label) for label in (0, 3, 4)]
    assert torch.allclose(wanted, sum(each) / 3)


def test_a_row_without_positives_or_weight_is_an_anchor_without_positives():
    x, labels = draw(7, 0), torch.tensor([0, 0, 1, 1, 2, 3, 3])
    for criterion in (tc.InfoNCE(), tc.NegMMIOT(), tc.PushPull(), tc.PushPull(negatives="all")):
        pairs = labels[:, None] == labels
        assert torch.allclose(criterion(x, pairs=pairs), criterion(x, labels))
        with pytest.raises(ValueError, match="has no positive pair"):
            criterion(x, pairs=torch.eye(7))
        with pytest.raises(ValueError, match="has no positive pair"):
            criterion(x, labels, weights=torch.zeros(7))
    assert tc.IOT(empty="zero")(x, pairs=torch.zeros(7, 7)) == 0


# --- Sizes ----------------------------------------------------------------------------------------


def test_large_batches_need_no_cubic_object():
    # 3000 samples: N³ booleans would be 27 GB; counts are immediate.
    labels = torch.arange(3000) % 100
    loss = tc.IOT(n_iters=1)(torch.ones(3000, 2), labels)
    assert float(loss) == pytest.approx(math.log(3000 * 2999 / (3000 * 29)), rel=1e-5)


def test_mined_pairs_never_become_triplets():
    # 20 anchors with 1000 positives and 1000 negatives each: 2e7 triplets of 4e4 pairs.
    anchors, near = torch.arange(20).repeat_interleave(1000), torch.arange(1000).repeat(20)
    rows = torch.ones(20, 2, dtype=torch.float64)
    indices = anchors, near, anchors, near + 1000
    loss = tc.NegMMIOT(n_iters=1)(rows, indices_tuple=indices, ref_emb=rows[:1].repeat(2000, 1))
    wanted = math.log(20 * 2000 * 1999 / (20 * 1000**2))
    assert float(loss) == pytest.approx(wanted, rel=1e-9)
