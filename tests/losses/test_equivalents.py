"""Losses of other libraries that a setting of ours is, value and gradient: docs/equivalents.md."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import tricouple as tc
from conftest import classes, draw
from reference import relative_error, with_gradients
from tricouple.adapters.lightly import TwoViewLoss
from tricouple.adapters.open_clip import ClipLoss

from lightly.loss import NTXentLoss  # isort: skip
from open_clip import loss as open_clip  # isort: skip
from pytorch_metric_learning.losses import SupConLoss  # isort: skip
from sentence_transformers.sentence_transformer.losses import (  # isort: skip
    MultipleNegativesRankingLoss,
)

N = 16
IDS = torch.arange(N)
ALL_FOUR = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def mnrl(scale, *directions, mode="joint"):
    """MultipleNegativesRankingLoss of embeddings."""
    how = {"directions": directions, "partition_mode": mode}
    criterion = MultipleNegativesRankingLoss(nn.Identity(), scale, **how)
    return lambda q, d: criterion.compute_loss_from_embeddings([q, d], None)


def clip(scale):
    return lambda q, d: open_clip.ClipLoss()(normalize(q), normalize(d), scale)


def joint(c):
    criterion = tc.InfoNCE(sharpness=c, partition="joint")
    return lambda q, d: criterion(*tc.pair_views(q, d))


EQUAL = {
    "ClipLoss": lambda c: (lambda q, d: ClipLoss(tc.InfoNCE())(q, d, c), clip(c)),
    "ClipLoss, by both directions": lambda c: (
        lambda q, d: tc.BothDirections(tc.InfoNCE(sharpness=c))(q, d, IDS), clip(c)
    ),
    "MNRL": lambda c: (
        lambda q, d: tc.InfoNCE(sharpness=c)(q, IDS, ref_emb=d, ref_labels=IDS),
        mnrl(c, "query_to_doc"),
    ),
    "symmetric MNRL": lambda c: (
        lambda q, d: tc.BothDirections(tc.InfoNCE(sharpness=c))(q, d, IDS),
        mnrl(c, "query_to_doc", "doc_to_query", mode="per_direction"),
    ),
    "GTE": lambda c: (joint(c), mnrl(c, *ALL_FOUR)),
    "NT-Xent": lambda c: (lambda q, d: tc.InfoNCE(1 / c)(*tc.pair_views(q, d)), NTXentLoss(1 / c)),
    "NT-Xent, by the adapter": lambda c: (TwoViewLoss(tc.InfoNCE(1 / c)), NTXentLoss(1 / c)),
    "SupCon": lambda c: (
        lambda q, d: tc.InfoNCE(1 / c)(torch.cat([q, d]), LABELS),
        lambda q, d: SupConLoss(1 / c)(torch.cat([q, d]), LABELS),
    ),
}  # fmt: skip
LABELS = classes(17, 11, 3, 1)


def pairs():
    """Queries and their documents."""
    queries = draw(N, 0, 8)
    return [queries.requires_grad_(), (queries.detach() + draw(N, 1, 8)).requires_grad_()]


@pytest.mark.parametrize("c", [3.0, 10.0, 20.0])
@pytest.mark.parametrize("name", EQUAL)
def test_it_is_their_loss(name, c):
    given = pairs()
    ours, theirs = (with_gradients(loss(*given), given) for loss in EQUAL[name](c))
    for found, wanted in zip(ours, theirs, strict=True):
        assert relative_error(found, wanted) <= 1e-12


def test_gte_is_not_nt_xent():
    q, d = pairs()
    apart = tc.InfoNCE(sharpness=10)(*tc.pair_views(q, d))
    assert joint(10)(q, d) > apart + torch.log(torch.tensor(2.0)) + 1e-3
    apart = tc.InfoNCE(sharpness=10)(*tc.pair_views(q, q))  # where Z_q is Z_d
    assert torch.allclose(joint(10)(q, q), apart + torch.tensor(2.0).double().log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", [10.0, 200.0])
def test_the_joint_partition_adds_up_the_denominators_of_a_class(c, dtype):
    """Of classes of any size, weights, and more pairs than a tile holds."""
    x, labels = draw(700, 0, 16).to(dtype).requires_grad_(), torch.arange(700) % 131
    weights = torch.arange(700.0) % 5
    for chosen in (slice(0, 12), slice(0, 700)):
        rows, names, each = x[chosen], labels[chosen] % 6, weights[chosen].double()
        unit = normalize(rows.double())
        s = (c * unit @ unit.T).fill_diagonal_(-torch.inf)
        same = (names[:, None] == names).double()
        logs = torch.logsumexp(s.logsumexp(1) + same.log(), 1)  # of each anchor's class
        positive = same.clone().fill_diagonal_(0)
        target = positive / positive.sum(1, keepdim=True)
        terms = logs - torch.where(positive > 0, target * s, 0.0).sum(1)
        wanted = with_gradients((each * terms).sum() / each.sum(), [x])
        value = tc.InfoNCE(sharpness=c, partition="joint")(rows, names, weights=weights[chosen])
        found = with_gradients(value, [x])
        limit = 1e-5 if dtype == torch.float32 else 1e-11
        assert max(relative_error(*both) for both in zip(found, wanted, strict=True)) <= limit


def of_a_share(rank, parts):
    """Value and own gradient of one process."""
    x, labels = parts[rank]
    criterion = tc.InfoNCE(partition="joint", group="world")
    value = criterion(x.requires_grad_(), labels)
    return value.detach(), torch.autograd.grad(value, x)[0]


def test_the_joint_partition_of_several_processes_is_that_of_one(pools):
    x, labels = draw(14, 0).requires_grad_(), torch.arange(14) % 5
    wanted = with_gradients(tc.InfoNCE(partition="joint")(x, labels), [x])
    split = [part.detach().split([8, 6]) for part in (x, labels)]
    found = pools(2).run(of_a_share, list(zip(*split, strict=True)))
    assert all(torch.allclose(value, wanted[0]) for value, _ in found)
    gradient = torch.cat([part for _, part in found]).flatten() / 2
    assert torch.allclose(gradient, wanted[1], atol=1e-14)


def test_the_joint_partition_needs_identities_of_one_set():
    x, criterion = draw(4, 0), tc.InfoNCE(partition="joint")
    calls = ({"labels": IDS[:4], "ref_emb": x, "ref_labels": IDS[:4]}, {"pairs": torch.ones(4, 4)})
    for call in calls:
        with pytest.raises(ValueError, match=r'partition="joint".*one set.*pair_views'):
            criterion(x, **call)
    with pytest.raises(ValueError, match="partition must be one of 'per_anchor', 'joint'"):
        tc.InfoNCE(partition="both")
