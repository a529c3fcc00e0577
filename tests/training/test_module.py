"""What a training step shows to the loss, and when it gives up."""

import pytest
import torch
from torch import nn

import tricouple as tc
from tricouple.data.augment import Recipe
from tricouple.data.images.sets import Normalisation
from tricouple.data.sampler import Share
from tricouple.training.module import BYOLTraining, DivergenceError, LossTraining, Views

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
