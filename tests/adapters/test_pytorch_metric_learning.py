"""pytorch-metric-learning's conventions: miners, wrappers, reducers, trainers and testers."""

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn

import tricouple as tc
from conftest import TEN, classes, draw
from processes import in_processes
from reference import assert_same, relative_error, with_gradients
from tricouple.adapters.pytorch_metric_learning import (
    CrossBatchMemory,
    MetricLoss,
    SelfSupervisedLoss,
)

LABELS = classes(5, 4, 3)
EACH_LOSS = pytest.mark.parametrize("criterion", TEN, ids=lambda loss: type(loss).__name__)


def rows(seed: int = 0, n: int = 12, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return draw(n, seed).to(dtype).requires_grad_()


def neg_mmiot() -> tc.NegMMIOT:
    return tc.NegMMIOT(1.0, 0.1)


def test_info_nce_is_sup_con():
    x = rows()
    ours = with_gradients(MetricLoss(tc.InfoNCE(0.1))(x, LABELS), [x])
    assert_same(ours, with_gradients(losses.SupConLoss(0.1)(x, LABELS), [x]), 1e-10)


@EACH_LOSS
def test_references_are_other_samples_and_the_anchors_are_none(criterion):
    """That library hands the anchors over as references where there are none."""
    x, others, ids = rows(), rows(1, 9), classes(3, 3, 3)
    direct = criterion(x, LABELS)
    assert torch.equal(MetricLoss(criterion)(x, LABELS), direct)
    assert torch.equal(MetricLoss(criterion)(x, LABELS, ref_emb=x, ref_labels=LABELS), direct)
    found = MetricLoss(criterion)(x, LABELS, ref_emb=others, ref_labels=ids)
    assert torch.equal(found, criterion(x, LABELS, ref_emb=others, ref_labels=ids))


MINERS = {
    "triplet margin": miners.TripletMarginMiner(margin=0.5, type_of_triplets="all"),
    "batch hard": miners.BatchHardMiner(),
    "angular": miners.AngularMiner(angle=10),
    "multi-similarity": miners.MultiSimilarityMiner(epsilon=0.5),
    "pair margin": miners.PairMarginMiner(pos_margin=0.1, neg_margin=1.9),
    "batch easy hard": miners.BatchEasyHardMiner(),
    "hard-aware cascade": miners.HDCMiner(),
    "histogram": miners.UniformHistogramMiner(),
}


@pytest.mark.parametrize("miner", MINERS)
@EACH_LOSS
def test_miners_of_triplets_and_of_pairs_are_heard(criterion, miner):
    torch.manual_seed(0)
    x = rows()
    found = MINERS[miner](x.detach(), LABELS)
    loss = MetricLoss(criterion)(x, LABELS, found)
    assert torch.equal(loss, criterion(x, indices_tuple=found))
    if len(found) == 4:
        pairs = MetricLoss(criterion)(x, indices_tuple=found)
        assert torch.equal(loss, pairs)
    loss.backward()
    assert bool(x.grad.isfinite().all())


@EACH_LOSS
@pytest.mark.parametrize("number", [0, 3, 4], ids=["distinct labels", "no triplets", "no pairs"])
def test_a_batch_without_pairs_gives_zero(criterion, number):
    x, nothing = rows(), torch.empty(0, dtype=torch.long)
    given = (LABELS, (nothing,) * number) if number else (torch.arange(12),)
    loss = MetricLoss(criterion)(x, *given)
    loss.backward()
    assert loss.item() == 0.0
    assert bool((x.grad == 0).all())


def test_losses_add_up_with_their_weights_and_miners():
    x, ours = rows(), MetricLoss(neg_mmiot())
    peer, miner = losses.TripletMarginLoss(), miners.MultiSimilarityMiner()
    both = losses.MultipleLosses([ours, peer], weights=[2, 0.5])
    wanted = 2 * ours(x, LABELS) + 0.5 * peer(x, LABELS)
    torch.testing.assert_close(both(x, LABELS), wanted)
    named = losses.MultipleLosses({"a": ours, "b": peer}, miners={"a": miner})
    torch.testing.assert_close(
        named(x, LABELS), ours(x, LABELS, miner(x, LABELS)) + peer(x, LABELS)
    )


@pytest.mark.parametrize(
    "reducer",
    [reducers.MeanReducer(), reducers.AvgNonZeroReducer(), reducers.ThresholdReducer(low=0)],
    ids=lambda reducer: type(reducer).__name__,
)
def test_reducers_leave_the_number_as_it_is(reducer):
    x = rows()
    assert torch.equal(MetricLoss(neg_mmiot(), reducer=reducer)(x, LABELS), neg_mmiot()(x, LABELS))


def test_reducers_can_do_nothing_and_regularizers_add():
    x = rows()
    parts = MetricLoss(neg_mmiot(), reducer=reducers.DoNothingReducer())(x, LABELS)
    assert torch.equal(parts["loss"]["losses"], neg_mmiot()(x, LABELS))
    options = {"embedding_regularizer": regularizers.LpRegularizer(), "embedding_reg_weight": 0.3}
    found = MetricLoss(neg_mmiot(), **options)(x, LABELS)
    lengths = torch.linalg.vector_norm(x, dim=1).mean()
    torch.testing.assert_close(found, neg_mmiot()(x, LABELS) + 0.3 * lengths)


def test_bad_input_is_refused():
    x = rows()
    with pytest.raises(TypeError, match="criterion must be a loss of tricouple"):
        MetricLoss(losses.SupConLoss())
    for distance in (distances.LpDistance(), distances.CosineSimilarity(power=2)):
        with pytest.raises(ValueError, match=r"distance must be CosineSimilarity\(\), got"):
            MetricLoss(neg_mmiot(), distance=distance)
    with pytest.raises(ValueError, match=r"three index tensors.*or four"):
        MetricLoss(neg_mmiot())(x, LABELS, (torch.tensor([0]), torch.tensor([1])))
    with pytest.raises(ValueError, match=r"indices_tuple .*no meaning for VICReg"):
        MetricLoss(tc.VICReg())(x, LABELS, miners.BatchHardMiner()(x, LABELS))


# Wrappers ----------------------------------------------------------------------------------------


def memories(ours: tc.InfoNCE, peer: nn.Module, **options) -> list[nn.Module]:
    sizes = {"embedding_size": 5, "memory_size": 30, **options}
    return [CrossBatchMemory(MetricLoss(ours), **sizes), losses.CrossBatchMemory(peer, **sizes)]


def test_info_nce_with_a_memory_is_sup_con_with_theirs():
    ours, theirs = memories(tc.InfoNCE(0.1), losses.SupConLoss(0.1))
    for step in range(5):  # the memory is full after three, and begins again
        x = rows(step)
        found, wanted = (with_gradients(memory(x, LABELS), [x]) for memory in (ours, theirs))
        assert_same(found, wanted, 1e-10)
    assert torch.equal(ours.embedding_memory, theirs.embedding_memory)


@EACH_LOSS
def test_no_anchor_meets_its_own_copy_in_the_memory(criterion):
    """A memory of this batch alone is the batch itself."""
    x = rows()
    memory = CrossBatchMemory(MetricLoss(criterion), embedding_size=5, memory_size=30)
    first = memory(x, LABELS)
    torch.testing.assert_close(first, criterion(x, LABELS))
    second = memory(rows(1), LABELS)
    stored, ids = torch.cat([x, rows(1)]).detach(), torch.cat([LABELS, LABELS])
    own = torch.arange(12, 24)
    direct = criterion(rows(1), LABELS, ref_emb=stored, ref_labels=ids, ref_index=own)
    torch.testing.assert_close(second, direct)


@pytest.mark.parametrize("miner", ["multi-similarity", "batch hard"])
def test_a_memory_takes_miners_of_both_kinds(miner):
    ours = MetricLoss(neg_mmiot())
    memory = CrossBatchMemory(ours, embedding_size=5, memory_size=30, miner=MINERS[miner])
    for step in range(4):
        x = rows(step)
        loss = memory(x, LABELS)
        if step == 0 and miner == "multi-similarity":  # nothing but this batch is in the memory
            torch.testing.assert_close(loss, ours(x, LABELS, MINERS[miner](x, LABELS)))
        loss.backward()
        assert loss.item() > 0
        assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("outside", ["multi-similarity", "batch hard"])
def test_what_an_outside_miner_lists_counts_the_batch(outside):
    """Positives that it lists have the anchor's label in the memory too, negatives another."""
    seen = []

    class Watched(tc.NegMMIOT):
        def forward(self, embeddings, labels=None, indices_tuple=None, **others):
            seen.append((embeddings, indices_tuple))
            return super().forward(embeddings, labels, indices_tuple, **others)

    sizes = {"embedding_size": 5, "memory_size": 30, "miner": MINERS["multi-similarity"]}
    memory = CrossBatchMemory(MetricLoss(Watched(1.0, 0.1)), **sizes)
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        x, ids = rows(step), torch.randint(0, 4, (12,), generator=generator)
        assert torch.isfinite(memory(x, ids, indices_tuple=MINERS[outside](x, ids)))
        _, (a1, p, a2, n) = seen[-1]
        known = memory.label_memory
        assert torch.equal(known[a1], known[p])
        assert bool((known[a2] != known[n]).all())
    assert len(seen) == 5


def test_a_list_without_a_miner_inside_adds_nothing_to_all_pairs():
    x, lists = rows(1), MINERS["multi-similarity"](rows(1), LABELS)
    found = []
    for given in (None, lists):
        memory = CrossBatchMemory(MetricLoss(neg_mmiot()), embedding_size=5, memory_size=30)
        memory(rows(), LABELS)
        found.append(memory(x, LABELS, indices_tuple=given))
    torch.testing.assert_close(*found)


def test_samples_for_the_memory_alone_are_others_than_the_anchors():
    criterion = neg_mmiot()
    memory = CrossBatchMemory(MetricLoss(criterion), embedding_size=5, memory_size=30)
    both, ids = torch.cat([rows(), rows(1)]), torch.cat([LABELS, LABELS])
    queued = torch.arange(24) >= 12
    found = memory(both, ids, enqueue_mask=queued)
    direct = criterion(rows(), LABELS, ref_emb=rows(1).detach(), ref_labels=LABELS)
    torch.testing.assert_close(found, direct)


def test_two_views_are_paired():
    first, second, criterion = rows(), rows(1), neg_mmiot()
    found = SelfSupervisedLoss(MetricLoss(criterion))(first, second)
    assert torch.equal(found, criterion(*tc.pair_views(first, second)))
    ids = torch.arange(12)
    across = SelfSupervisedLoss(MetricLoss(criterion), symmetric=False)(first, second)
    assert torch.equal(across, criterion(first, ids, ref_emb=second, ref_labels=ids))


# Several processes -------------------------------------------------------------------------------


@EACH_LOSS
def test_their_distributed_wrapper_has_the_gradient_of_the_whole(criterion, tmp_path):
    whole = rows()
    wanted = with_gradients(criterion(whole, LABELS), [whole])

    def share(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        half = slice(6 * rank, 6 * rank + 6)
        own = whole.detach()[half].requires_grad_()
        loss = DistributedLossWrapper(MetricLoss(criterion))(own, LABELS[half])
        return loss.detach() / 2, torch.autograd.grad(loss, own)[0] / 2

    answers = in_processes(2, tmp_path, share)
    assert_same(
        [answers[0][0], torch.cat([slope for _, slope in answers]).flatten()], wanted, 1e-10
    )


def test_their_efficient_wrapper_leaves_out_the_own_copies(tmp_path):
    """A mean over anchors is the mean over processes of those of each."""
    criterion, whole = tc.InfoNCE(0.1), rows()

    def share(rank: int) -> torch.Tensor:
        half = slice(6 * rank, 6 * rank + 6)
        wrapper = DistributedLossWrapper(MetricLoss(criterion), efficient=True)
        return wrapper(whole.detach()[half], LABELS[half]) / 2

    wanted = criterion(whole, LABELS).detach()
    assert relative_error(torch.stack(in_processes(2, tmp_path, share)).mean(), wanted) < 1e-10
