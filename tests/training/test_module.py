"""What a training step shows to the loss, when it gives up, what it draws, and its trainer."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tricouple as tc
from tricouple_lab.data.augment import Recipe
from tricouple_lab.data.images.sets import ImageSet, Normalisation
from tricouple_lab.data.sampler import Share
from tricouple_lab.training.module import (
    BYOLTraining,
    DivergenceError,
    EpochOrder,
    LossTraining,
    ShuffledBatches,
    Views,
    derived_seed,
)
from tricouple_lab.training.trainer import as_csv, check_flags, curves

RECIPE = Recipe(Normalisation((0.5,), (0.25,), size=6), jitter=0.0, grayscale=0.0, blur=0.0)
PLAIN = Views(1, RECIPE, random=False, by_class=True)
RANDOM = Views(2, RECIPE, random=True, by_class=False)
WHOLE = Share(8)
OPTIONS = {"learning_rate": 1e-2, "weight_decay": 0.0, "seed": 0, "identity": "me"}


def images(n: int = 8) -> torch.Tensor:
    shape = (n, 1, 6, 6)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def encoder(dim: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.BatchNorm1d(16), nn.Linear(16, dim))


def training(criterion=None, views: Views = PLAIN, network: nn.Module | None = None):
    criterion = criterion or tc.InfoNCE()
    return LossTraining(network or encoder(), views, criterion, **OPTIONS)


def test_plain_views_are_the_normalised_images_and_positives_share_a_class():
    (view,) = PLAIN.draw(images(), 0, WHOLE)
    assert torch.equal(view, RECIPE.normalisation(images()))
    labels = torch.tensor([3, 1, 3, 1, 0, 0, 2, 2])
    assert torch.equal(PLAIN.identities(labels, WHOLE), labels)


def test_random_views_are_functions_of_the_seed_and_positives_are_views_of_an_image():
    first, again, other = (RANDOM.draw(images(), seed, WHOLE) for seed in (1, 1, 2))
    assert len(first) == 2
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])
    assert RANDOM.identities(torch.zeros(8), WHOLE).tolist() == list(range(8))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_image_has_the_views_and_the_identity_that_it_has_in_one_process(rank):
    share = Share(8, rank, 3)
    whole = RANDOM.draw(images(), 1, WHOLE)
    for view, expected in zip(RANDOM.draw(images()[share.rows], 1, share), whole, strict=True):
        torch.testing.assert_close(view, expected[share.rows])
    identities = RANDOM.identities(torch.zeros(8)[share.rows], share)
    assert identities.tolist() == list(range(8))[share.rows]


def test_loss_of_a_batch_is_the_criterion_of_all_its_views():
    module = training(views=RANDOM).eval()
    views = RANDOM.draw(images(), 0, WHOLE)
    embeddings = [module.encoder(view) for view in views]
    expected = tc.InfoNCE()(*tc.pair_views(*embeddings))
    torch.testing.assert_close(module.loss(views, torch.arange(8)), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_embeddings_that_are_no_numbers_stop_the_training(bad):
    network = encoder()
    nn.init.constant_(network[-1].weight, bad)
    module = training(network=network)
    with pytest.raises(DivergenceError, match=r"embeddings are not finite.*learning_rate"):
        module.loss(PLAIN.draw(images(), 0, WHOLE), torch.arange(8) % 2)


def byol(views: Views) -> BYOLTraining:
    return BYOLTraining(encoder(), views, head_dim=4, hidden=8, momentum=0.5, **OPTIONS)


def test_byol_pairs_images_of_a_class_where_there_is_one_view():
    module = byol(PLAIN).eval()
    (view,) = PLAIN.draw(images(), 0, WHOLE)
    labels = torch.tensor([0, 1, 0, 1, 5, 7, 0, 0])
    # By class: 0 with 2, 6 with 7; 1 with 3; classes of one image have no pair.
    expected = module.byol.loss(view[[0, 6, 1]], view[[2, 7, 3]])
    torch.testing.assert_close(module.loss([view], labels), expected)


def test_byol_compares_two_views_of_an_image_and_learns_with_one_set_of_weights():
    module = byol(RANDOM)
    views = RANDOM.draw(images(), 0, WHOLE)
    module.loss(views, torch.arange(8)).backward()
    learning = module.configure_optimizers().param_groups[0]["params"]
    online, target = module.encoder, module.byol.target
    assert {id(p) for p in online.parameters()} < {id(p) for p in learning}
    assert not {id(p) for p in target.parameters()} & {id(p) for p in learning}
    assert len(learning) == len({id(p) for p in learning})


# --- random numbers are functions of the place in a run -------------------------------------------


def test_seeds_differ_between_all_places():
    places = [
        (seed, what, epoch, step)
        for seed in range(3)
        for what in ("order", "views")
        for epoch in range(4)
        for step in range(4)
    ]
    seeds = {derived_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_order_depends_on_seed_and_epoch_alone():
    first, again, other = EpochOrder(50, 0), EpochOrder(50, 0), EpochOrder(50, 1)
    list(first)  # drawing one epoch does not change the next
    for order in (first, again, other):
        order.set_epoch(3)
    assert list(first) == list(again) != list(other)
    again.set_epoch(4)
    assert list(first) != list(again)
    assert sorted(first) == list(range(50))


def numbered(n):
    return ImageSet(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1), torch.arange(n))


def of_process(rank, world, n=23, batch_size=5):
    batches = ShuffledBatches(numbered(n), batch_size, 0)
    batches.trainer = SimpleNamespace(global_rank=rank, world_size=world)
    loader = batches.train_dataloader()
    loader.batch_sampler.sampler.set_epoch(2)  # as Lightning does
    return [labels for _, labels in loader]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_the_batches_of_one_and_no_sample_is_in_a_batch_twice(world):
    whole, shares = of_process(0, 1), [of_process(rank, world) for rank in range(world)]
    assert len(whole) == 4  # of 23 samples three are left out
    for number, batch in enumerate(whole):
        parts = [share[number] for share in shares]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sorted(torch.cat(parts).tolist()) == sorted(batch.tolist())
        assert len(set(batch.tolist())) == 5


def test_a_batch_that_leaves_processes_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="batch_size is 5, but 6 processes share each batch"):
        of_process(0, 6)


def test_batches_are_full_and_hold_images_with_their_labels():
    batches = list(ShuffledBatches(numbered(10), 4, 0).train_dataloader())
    assert [len(labels) for _, labels in batches] == [4, 4]
    for pixels, labels in batches:
        assert torch.equal(pixels.flatten().long(), labels)


# --- flags of Lightning pass, but for those that a run decides itself -----------------------------


def test_flags_of_lightning_pass():
    check_flags({"devices": 2, "strategy": "ddp", "precision": "bf16-mixed"})
    check_flags({"gradient_clip_val": 1.0})


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("accumulate_grad_batches", "compares the samples of one batch"),
        ("max_epochs", "set training.epochs"),
        ("callbacks", "runs bring their own"),
        ("devcies", "is not a flag of Lightning; it has accelerator, strategy, devices"),
    ],
)
def test_other_flags_are_refused_with_the_reason(flag, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        check_flags({flag: 2})
    assert f"trainer.{flag}" in str(refused.value)


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2", "model_parallel"])
def test_strategies_that_take_networks_apart_are_refused(strategy):
    with pytest.raises(ValueError, match=f"strategy={strategy}: runs keep whole networks"):
        check_flags({"strategy": strategy})
    with pytest.raises(ValueError, match="strategy=ddp_spawn: use ddp"):
        check_flags({"strategy": "ddp_spawn"})


def test_curves_have_gaps_where_nothing_was_measured():
    rows = [{"step": 0, "alpha": 0.1}, {"step": 5, "loss": 1 / 3}]
    assert curves(rows) == {"step": [0, 5], "alpha": [0.1, None], "loss": [None, 1 / 3]}
    assert as_csv(rows) == f"step,alpha,loss\n0,0.1,\n5,,{1 / 3}\n"
