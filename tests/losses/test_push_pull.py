"""Claims about `PushPull` alone: its two plans and the pairs they are compared with."""

import math

import pytest
import torch

import tricouple as tc
from reference import (
    admissible_triplets,
    cosine,
    kl_to,
    pair_cost,
    relative_error,
    uniform_on,
)


@pytest.mark.parametrize("setting", ["singleton", "across_unmatched"])
def test_loss_is_the_divergence_from_transport_and_anti_transport(settings, setting):
    batch = settings[setting]
    cost = pair_cost(-cosine(batch.embeddings, batch.ref_emb) / 0.5, batch.ref_emb is None).detach()
    triplets = admissible_triplets(batch.labels, batch.ref_labels)
    pull = uniform_on([(i, j) for i, j, _ in triplets], tuple(cost.shape))
    push = uniform_on([(i, k) for i, _, k in triplets], tuple(cost.shape))
    attracting = tc.ot.sinkhorn(cost, 0.4, n_iters=10).dense()
    repelling = tc.ot.sinkhorn(cost, 0.9, n_iters=10, anti=True).dense()
    loss = batch.loss(tc.PushPull(temperature=0.5, epsilon_pos=0.4, epsilon_neg=0.9))
    wanted = kl_to(pull, attracting.log()) + kl_to(push, repelling.log())
    assert relative_error(loss, wanted) <= 1e-12


@pytest.mark.parametrize(("negatives", "pairs"), [("projected", 2), ("all", 4)])
def test_anchor_without_positive_has_negative_pairs_only_if_all_are_asked_for(negatives, pairs):
    # Labels 0, 0, 1: A⁺ = {01, 10}, A⁻ = {02, 12} or {02, 12, 20, 21}; both plans are 1/6 on six.
    criterion = tc.PushPull(negatives=negatives)
    loss = criterion(torch.ones(3, 2, dtype=torch.float64), torch.tensor([0, 0, 1]))
    assert float(loss) == pytest.approx(math.log(6 / 2) + math.log(6 / pairs))


def test_sets_of_negatives_differ_only_with_anchors_without_a_positive(settings):
    losses = [tc.PushPull(negatives=negatives) for negatives in ("projected", "all")]
    differ = {
        name
        for name, batch in settings.items()
        if relative_error(*(batch.loss(loss) for loss in losses)) > 1e-12
    }
    assert differ == {"singleton", "across_unmatched"}


def test_an_unknown_set_of_negatives_is_refused():
    with pytest.raises(ValueError, match="negatives must be one of 'projected', 'all', got 'hard'"):
        tc.PushPull(negatives="hard")


def test_reference_is_no_anchor_across():
    # Anchors 0, 1 against references 0, 0, 2: anchor 1 has no positive, so only anchor 0 counts.
    loss = tc.PushPull()(
        torch.ones(2, 2, dtype=torch.float64),
        torch.tensor([0, 1]),
        ref_emb=torch.ones(3, 2, dtype=torch.float64),
        ref_labels=torch.tensor([0, 0, 2]),
    )
    assert float(loss) == pytest.approx(math.log(6 / 2) + math.log(6 / 1))


def test_epsilons_act_on_their_own_half(batch):
    def value(positive, negative):
        return batch.loss(tc.PushPull(0.1, epsilon_pos=positive, epsilon_neg=negative))

    straight = value(0.1, 0.3) + value(0.2, 0.6)
    crossed = value(0.1, 0.6) + value(0.2, 0.3)
    assert relative_error(straight, crossed) <= 1e-12
    assert relative_error(value(0.1, 0.3), value(0.3, 0.1)) > 1e-3


def test_halves_exchange_when_positives_and_negatives_do(settings):
    # Anti-transport of s is transport of −s: negating the references swaps attraction, repulsion.
    batch = settings["triplets_across"]
    anchors, positives, negatives = batch.triplets
    criterion = tc.PushPull(temperature=0.5, epsilon_pos=0.4, epsilon_neg=0.4)
    mirrored = criterion(
        batch.embeddings, indices_tuple=(anchors, negatives, positives), ref_emb=-batch.ref_emb
    )
    assert relative_error(mirrored, batch.loss(criterion)) <= 1e-12


def test_loss_falls_as_classes_separate():
    angles = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    criterion = tc.PushPull(temperature=0.5, epsilon_pos=0.5, epsilon_neg=0.5)

    def value(spread):
        turned = angles * spread
        return float(criterion(torch.stack([turned.cos(), turned.sin()], 1), labels))

    values = [value(spread) for spread in torch.linspace(0, math.pi, 9).tolist()]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] - 1
