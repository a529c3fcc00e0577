"""Image sets, splits, batches and what is checked before training."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tricouple_lab.data import images
from tricouple_lab.data.images import ImageSet
from tricouple_lab.data.images.sets import Normalisation
from tricouple_lab.training.module import EpochOrder


def image_set(*sizes: int, side: int = 4) -> ImageSet:
    """Classes of the given sizes, shuffled; pixel (0, 0) of each image holds its number."""
    n = sum(sizes)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    pixels = torch.zeros(n, 1, side, side, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return ImageSet(pixels[order], labels[order])


def numbers(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def counts(images: ImageSet, n_classes: int) -> list[int]:
    return torch.bincount(images.labels, minlength=n_classes).tolist()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_subsets_are_exact_stratified_and_seeded(sizes, share, seed):
    whole = image_set(*sizes)
    size = max(len(sizes), round(share * len(whole)))
    part = images.subset(whole, size, seed)
    assert len(part) == size
    assert len(set(numbers(part))) == size
    for found, of in zip(counts(part, len(sizes)), sizes, strict=True):
        assert 1 <= found <= of
        # Proportional to within one image, or more where small classes were given their one.
        assert found <= max(1, size * of / len(whole) + 1)
    assert numbers(images.subset(whole, size, seed)) == numbers(part)


@given(sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6), fraction=st.floats(0.01, 0.99))
def test_splits_are_complete_disjoint_and_stratified(sizes, fraction):
    whole = image_set(*sizes)
    rest, held_out = images.split(whole, fraction)
    assert sorted(numbers(rest) + numbers(held_out)) == sorted(numbers(whole))
    parts = zip(counts(rest, len(sizes)), counts(held_out, len(sizes)), sizes, strict=True)
    for kept, drawn, of in parts:
        assert kept >= 1
        assert drawn >= 1
        assert kept + drawn == of
    wanted = round(fraction * len(whole))
    assert len(held_out) == min(max(wanted, len(sizes)), len(whole) - len(sizes))


def test_labels_follow_their_images():
    whole = image_set(10, 20, 30)
    labels = dict(zip(numbers(whole), whole.labels.tolist(), strict=True))
    for part in (images.subset(whole, 17), *images.split(whole, 13)):
        assert [labels[number] for number in numbers(part)] == part.labels.tolist()


def test_seeds_give_different_subsets():
    whole = image_set(50, 50)
    assert numbers(images.subset(whole, 20, seed=0)) != numbers(images.subset(whole, 20, seed=1))


def test_unlabelled_sets_are_split_too():
    whole = ImageSet(image_set(30).images)
    rest, held_out = images.split(whole, 10)
    assert rest.labels is held_out.labels is None
    assert sorted(numbers(rest) + numbers(held_out)) == list(range(30))
    assert len(images.subset(whole, 7)) == 7


def test_the_only_image_of_a_class_stays():
    rest, held_out = images.split(image_set(1, 9), 3)
    assert counts(rest, 2) == [1, 6]
    assert counts(held_out, 2) == [0, 3]


def test_train_size_changes_the_training_set_alone():
    data = images.load("digits", train_size=100, seed=3)
    whole = images.load("digits")
    assert counts(data.train, 10) == [10] * 10
    assert torch.equal(data.test.images, whole.test.images)
    assert data.probe is data.train


def test_image_size_is_what_networks_see_and_stored_images_keep_theirs():
    data = images.load("digits", image_size=32)
    assert data.image_size == 32
    assert data.train.images.shape[2:] == (8, 8)
    assert data.normalisation(data.train.images[:5]).shape == (5, 1, 32, 32)


def test_normalisation_standardises_every_channel():
    x = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    mean, std = (x / 255).mean((0, 2, 3)), (x / 255).std((0, 2, 3))
    found = Normalisation(tuple(mean.tolist()), tuple(std.tolist()), size=8)(x)
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3)), torch.ones(3))


def test_items_and_batches_agree():
    whole = image_set(3, 4)
    pixels, labels = whole.__getitems__([5, 0, 5])
    assert torch.equal(pixels[0], whole[5][0])
    assert torch.equal(pixels[1], whole[-7][0])
    assert labels.tolist() == [int(whole[5][1]), int(whole[0][1]), int(whole[5][1])]
    with pytest.raises(IndexError):
        whole[7]
    assert repr(whole) == "ImageSet(7 labelled images of 1×4×4)"


def test_loaders_give_every_image_once_an_epoch_in_a_seeded_order():
    whole = image_set(11, 12)

    def epoch(seed):
        loader = images.loader(whole, 5, order=EpochOrder(23, seed))
        return [int(image[0, 0, 0]) for batch, _ in loader for image in batch]

    state = torch.random.get_rng_state()
    assert sorted(epoch(0)) == list(range(23))
    assert epoch(0) == epoch(0) != epoch(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_loaders_drop_the_last_batch_on_request_only():
    whole = ImageSet(image_set(11).images)  # images without labels have −1
    assert [labels.tolist() for _, labels in images.loader(whole, 4)] == [
        [-1] * n for n in (4, 4, 3)
    ]
    assert [len(labels) for _, labels in images.loader(whole, 4, drop_last=True)] == [4, 4]


def digits_like(train: ImageSet) -> images.ImageData:
    classes = tuple("abcdef"[: int(train.labels.max()) + 1]) if train.labels is not None else ()
    normalisation = Normalisation((0.5,), (0.5,), 4)
    return images.ImageData("toy", train, None, None, classes, normalisation)


def test_possible_training_sets_pass():
    images.check_supervised(digits_like(image_set(2, 2)))
    images.check_batch_size(image_set(4), 4)


BLANK = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
REFUSED = [
    (lambda: images.split(image_set(5, 5), 0.0), "between 0 and 1"),
    (lambda: images.split(image_set(5, 5), 1.0), "between 0 and 1"),
    (lambda: images.split(image_set(5, 5), 0), "at least 1"),
    (lambda: images.split(image_set(5, 5), 1), "can spare 2 to 8"),
    (lambda: images.split(image_set(5, 5), 9), "can spare 2 to 8"),
    (lambda: images.split(image_set(1), 0.5), "can spare 0 to 0"),
    (
        lambda: images.load("digits", train_size=2000),
        "train_size is 2000, but there are only 1438 images",
    ),
    (
        lambda: images.load("digits", train_size=9),
        "train_size is 9, but there are 10 classes: use 10 or",
    ),
    (lambda: images.load("digits", train_size=0), "train_size must be at least 1, got 0"),
    (lambda: images.load("digits", image_size=-3), "image_size must be at least 1, got -3"),
    (lambda: images.load("digits", eval_root="elsewhere"), "eval_root is for data 'folder'"),
    (lambda: images.load("folder"), "'folder' needs root"),
    (lambda: images.load("imagenet"), r"data must be one of 'digits', 'mnist'.*got 'imagenet'"),
    (lambda: ImageSet(BLANK.float()), r"uint8 of shape \(n, c, h, w\), got torch.float32"),
    (
        lambda: ImageSet(BLANK, torch.arange(3)),
        r"labels must be int64 of shape \(2,\), got .* \(3,\)",
    ),
    (
        lambda: images.check_supervised(digits_like(ImageSet(BLANK))),
        "has no labels, which setting=scl needs",
    ),
    (lambda: images.check_supervised(digits_like(image_set(4))), "one class only"),
    (
        lambda: images.check_supervised(digits_like(image_set(4, 1, 2))),
        "class 'b' of data 'toy' has one training image:",
    ),
    (
        lambda: images.check_supervised(digits_like(image_set(1, 1, 1, 5))),
        r"class 'a' .*\(as have 2 others\)",
    ),
    (
        lambda: images.check_batch_size(image_set(4), 5),
        "batch_size is 5, but there are only 4 training images",
    ),
    (lambda: images.check_batch_size(image_set(4), 1), "at least 2 to hold a negative, got 1"),
]


@pytest.mark.parametrize(("call", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_cannot_be_done_is_refused_with_the_reason(call, problem):
    with pytest.raises(ValueError, match=problem):
        call()
