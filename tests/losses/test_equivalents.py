"""Losses that a setting of ours is: docs/equivalents.md; SupCon is in tests/adapters."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import tricouple as tc
import tricouple.adapters  # lets torchvision be imported
from conftest import draw
from reference import relative_error, with_gradients

from lightly.loss import NTXentLoss, VICRegLoss  # isort: skip
from open_clip import loss as open_clip  # isort: skip
from sentence_transformers.sentence_transformer import losses as st  # isort: skip

N, TWO = 16, torch.tensor(2.0, dtype=torch.float64)
IDS = torch.arange(N)


def mnrl(scale, *directions, mode="joint"):
    """MultipleNegativesRankingLoss of embeddings."""
    how = {"directions": directions, "partition_mode": mode}
    criterion = st.MultipleNegativesRankingLoss(nn.Identity(), scale, **how)
    return lambda q, d: criterion.compute_loss_from_embeddings([q, d], None)


def clip(scale):
    return lambda q, d: open_clip.ClipLoss()(normalize(q), normalize(d), scale)


def both(c):
    return lambda q, d: tc.BothDirections(tc.InfoNCE(sharpness=c))(q, d, IDS)


def of_views(**settings):
    return lambda q, d: tc.InfoNCE(**settings)(*tc.pair_views(q, d))


EQUAL = {
    "ClipLoss": lambda c: (both(c), clip(c)),
    "MNRL": lambda c: (
        lambda q, d: tc.InfoNCE(sharpness=c)(q, IDS, ref_emb=d, ref_labels=IDS),
        mnrl(c, "query_to_doc"),
    ),
    "symmetric MNRL": lambda c: (
        both(c), mnrl(c, "query_to_doc", "doc_to_query", mode="per_direction")
    ),
    "GTE": lambda c: (
        of_views(sharpness=c, partition="joint"),
        mnrl(c, "query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"),
    ),
    "NT-Xent": lambda c: (of_views(temperature=1 / c), NTXentLoss(1 / c)),
    "VICReg": lambda c: (
        lambda q, d: tc.VICReg(c, 20, 2, 1e-3)(*tc.pair_views(q, d)), VICRegLoss(c, 20, 2, eps=1e-3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("c", [3.0, 10.0, 20.0])
@pytest.mark.parametrize("name", EQUAL)
def test_it_is_their_loss(name, c):
    queries = draw(N, 0, 8)
    given = [queries.requires_grad_(), (queries.detach() + draw(N, 1, 8)).requires_grad_()]
    ours, theirs = (with_gradients(loss(*given), given) for loss in EQUAL[name](c))
    for found, wanted in zip(ours, theirs, strict=True):
        assert relative_error(found, wanted) <= 1e-12


def test_gte_is_at_least_log_two_above_nt_xent():
    joint, apart, q = of_views(partition="joint"), of_views(), draw(N, 0, 8)
    assert joint(q, draw(N, 1, 8)) > apart(q, draw(N, 1, 8)) + TWO.log() + 1e-3
    assert torch.allclose(joint(q, q), apart(q, q) + TWO.log())  # where Z_q is Z_d


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", [10.0, 200.0])
@pytest.mark.parametrize("n", [12, 700])
def test_the_joint_partition_adds_up_the_denominators_of_a_class(n, c, dtype):
    x, labels, weights = draw(n, 0, 16).to(dtype).requires_grad_(), IDS.repeat(44)[:n], draw(n, 1)
    labels, weights = labels % (5 if n < N else N), weights[:, 0].abs()
    unit, same = normalize(x.double()), (labels[:, None] == labels).double()
    s = (c * unit @ unit.T).fill_diagonal_(-torch.inf)
    logs = torch.logsumexp(s.logsumexp(1) + same.log(), 1)  # of each anchor's class
    target = same.fill_diagonal_(0) / same.sum(1, keepdim=True)
    terms = logs - torch.where(target > 0, target * s, 0.0).sum(1)
    wanted = with_gradients((weights * terms).sum() / weights.sum(), [x])
    value = tc.InfoNCE(sharpness=c, partition="joint")(x, labels, weights=weights)
    limit = 1e-5 if dtype == torch.float32 else 1e-11
    for one, other in zip(with_gradients(value, [x]), wanted, strict=True):
        assert relative_error(one, other) <= limit
