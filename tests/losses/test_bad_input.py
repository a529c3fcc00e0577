"""Bad input is an error that names the argument and the value found; never a silent NaN."""

import math

import pytest
import torch

import tricouple as tc

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
COUPLED = [tc.NegMMIOT, tc.PushPull, tc.IOT]
BASELINES = [tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.FusedGromov, tc.SigLIP, tc.VICReg]
TEMPERED = pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE, tc.InvaSpread])
MODULES = pytest.mark.parametrize("module", COUPLED + BASELINES)


def rows(n=6, d=3, **changes):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(**changes)


def with_entry(value):
    spoiled = rows()
    spoiled[3, 1] = value
    return spoiled


def with_zero_row():
    spoiled = rows()
    spoiled[4] = 0
    return spoiled


def triplet(*indices):
    return tuple(torch.tensor(index) for index in indices)


@MODULES
@pytest.mark.parametrize(
    ("name", "found", "embeddings"),
    [
        ("embeddings", "6", rows()[:, 0]),
        ("embeddings", "2, 3, 1", rows(2, 3)[:, :, None]),
        ("embeddings", "0", rows()[:0]),
        ("embeddings", "int64", torch.ones(6, 3, dtype=torch.int64)),
        ("embeddings", "complex64", rows(dtype=torch.complex64)),
        ("embeddings", "bool", torch.ones(6, 3, dtype=torch.bool)),
        ("embeddings", "list", [[1.0, 2.0]] * 6),
        ("embeddings", "nan", with_entry(math.nan)),
        ("embeddings", "inf", with_entry(math.inf)),
        ("embeddings", "inf", with_entry(-math.inf)),
        ("embeddings", "row 3", with_entry(math.nan)),
    ],
)
def test_bad_embeddings_are_named(module, name, found, embeddings):
    with pytest.raises((ValueError, TypeError)) as error:
        module()(embeddings, LABELS)
    assert name in str(error.value)
    assert found in str(error.value).lower(), str(error.value)


@pytest.mark.parametrize("module", [*COUPLED, *BASELINES[:-1]])  # VICReg takes any length
def test_rows_without_a_direction_are_named(module):
    with pytest.raises(ValueError, match=r"embeddings.*zero.*row 4"):
        module()(with_zero_row(), LABELS)
    with pytest.raises(ValueError, match=r"ref_emb.*zero.*row 4"):
        module()(rows(), LABELS, ref_emb=with_zero_row(), ref_labels=LABELS)


@MODULES
@pytest.mark.parametrize(
    ("name", "found", "arguments"),
    [
        ("labels", "5", {"labels": LABELS[:5]}),
        ("labels", "6, 1", {"labels": LABELS[:, None]}),
        ("labels", "whole numbers, got 0.5", {"labels": LABELS / 2}),
        ("labels", "meta", {"labels": LABELS.to("meta")}),
        ("labels", "numpy.unique(labels, return_inverse=True)[1]", {"labels": ["cat", "dog"] * 3}),
        ("labels", "dict", {"labels": {}}),
        ("labels", "float32", {"labels": [0.5] * 6}),
        ("labels", "pair_views(view0, view1)", {"labels": rows()}),
        ("labels", "missing", {}),
        ("ref_labels", "4", {"labels": LABELS, "ref_emb": rows(), "ref_labels": LABELS[:4]}),
        ("ref_labels", "float", {"labels": LABELS, "ref_emb": rows(), "ref_labels": LABELS * 0.5}),
        ("ref_labels", "missing", {"labels": LABELS, "ref_emb": rows()}),
        ("ref_emb", "4", {"labels": LABELS, "ref_emb": rows(6, 4), "ref_labels": LABELS}),
        ("ref_emb", "6", {"labels": LABELS, "ref_emb": rows()[:, 0], "ref_labels": LABELS}),
        ("ref_emb", "meta", {"labels": LABELS, "ref_emb": rows(device="meta"),
                             "ref_labels": LABELS}),
        ("ref_emb", "NaN or infinity in row 3", {"labels": LABELS, "ref_emb": with_entry(math.inf),
                                                 "ref_labels": LABELS}),
        ("ref_labels", "ref_emb", {"labels": LABELS, "ref_labels": LABELS}),
        ("indices_tuple", "2", {"indices_tuple": triplet([0], [1])}),
        ("indices_tuple", "6", {"indices_tuple": triplet([0], [1], [6])}),
        ("indices_tuple", "-1", {"indices_tuple": triplet([0], [-1], [2])}),
        ("indices_tuple", "float", {"indices_tuple": triplet([0.5], [1.0], [2.0])}),
        ("indices_tuple", "2", {"indices_tuple": triplet([0, 1], [1, 2], [2])}),
        ("indices_tuple", "1", {"indices_tuple": triplet([0, 1], [1, 1], [2, 3])}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(module, name, found, arguments):
    with pytest.raises((ValueError, TypeError)) as error:
        module()(rows(), **arguments)
    assert name in str(error.value)
    assert found in str(error.value)


POSITIVE = {
    tc.NegMMIOT: ["temperature", "epsilon", "kernel_tol", "memory_budget", "tol"],
    tc.PushPull: ["temperature", "epsilon_pos", "epsilon_neg", "tol"],
    tc.IOT: ["epsilon", "tol"],
    tc.InfoNCE: ["temperature"],
    tc.InvaSpread: ["temperature"],
    tc.SigLIP: ["temperature"],
    tc.DBOT: ["regularisation"],
    tc.FusedGromov: ["epsilon"],
    tc.VICReg: ["eps"],
}
NOT_NEGATIVE = {
    tc.IOT: ["uniformity"],
    tc.DBOT: ["lower", "upper"],
    tc.FusedGromov: ["alpha"],
    tc.VICReg: ["invariance", "variance", "covariance"],
}


@pytest.mark.parametrize("value", [0.0, -0.5, math.nan, math.inf])
@pytest.mark.parametrize(
    ("module", "name", "least"),
    [(module, name, "> 0") for module, names in POSITIVE.items() for name in names]
    + [(module, name, ">= 0") for module, names in NOT_NEGATIVE.items() for name in names],
)
def test_numbers_must_be_finite_and_large_enough(module, name, least, value):
    if value == 0.0 and least == ">= 0":
        value = -1e-4
    with pytest.raises(ValueError, match=f"{name} must be finite and {least}, got {value}"):
        module(**{name: value})
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        module(**{name: "small"})


@TEMPERED
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_temperature_that_leaves_its_range_in_training_is_named(module, value):
    temperature = torch.nn.Parameter(torch.tensor(0.5))
    criterion = module(temperature=temperature)
    with torch.no_grad():
        temperature.fill_(value)
    with pytest.raises(ValueError, match="temperature") as error:
        criterion(rows(), LABELS)
    assert str(value) in str(error.value)


SWEEPING = [*COUPLED, tc.DBOT, tc.FusedGromov]
OPTIONS = [
    *((module, "empty", "ignore") for module in COUPLED + BASELINES),
    *((module, "check", "none") for module in COUPLED + BASELINES),
    *((module, "n_iters", value) for module in SWEEPING for value in (0, -3, 2.5, None)),
    *((module, "gradient", "exact") for module in COUPLED),
    *((module, "memory", "disk") for module in (*COUPLED, tc.InfoNCE)),
    *((module, "marginals", "free") for module in COUPLED),
    *((module, "variant", "paper") for module in (tc.InvaSpread, tc.DBOT, tc.FusedGromov)),
    *((module, "shaping", "cubic") for module in (tc.NegMMIOT, tc.PushPull)),
    (tc.PushPull, "negatives", "hard"),
    (tc.FusedGromov, "n_outer", 0),
    (tc.DBOT, "lower", 1.2),  # above the mean: not feasible
    (tc.DBOT, "upper", 0.9),
]


@pytest.mark.parametrize(("module", "name", "value"), OPTIONS)
def test_unknown_options_are_named(module, name, value):
    with pytest.raises((ValueError, TypeError), match=name) as error:
        module(**{name: value})
    assert str(value) in str(error.value)
    assert ("feasible" in str(error.value)) == (name in ("lower", "upper"))


NO_POSITIVE = {"labels": torch.arange(6)}
NO_NEGATIVE = {"labels": torch.zeros(6, dtype=torch.int64)}
NO_COMMON = {"labels": LABELS, "ref_emb": rows(), "ref_labels": LABELS + 10}
NO_OTHER = {"ref_emb": rows(), "ref_labels": NO_NEGATIVE["labels"]} | NO_NEGATIVE
NO_TRIPLET = {"indices_tuple": tuple(torch.zeros(3, 0, dtype=torch.int64))}
WITHOUT = {
    "no positive": ("positive pair", NO_POSITIVE),
    "no negative": ("negative pair", NO_NEGATIVE),
    "no common": ("positive pair", NO_COMMON),
    "no other": ("negative pair", NO_OTHER),
    "no triplet": ("positive pair", NO_TRIPLET),
}
# IOT, SigLIP and VICReg need no negatives, VICReg knows no triplets, FusedGromov needs two sets.
MEANINGLESS = {
    tc.IOT: {"no negative", "no other"},
    tc.SigLIP: {"no negative", "no other"},
    tc.VICReg: {"no negative", "no other", "no triplet"},
    tc.FusedGromov: {"no positive", "no negative", "no triplet"},
}
EMPTY = [
    pytest.param(module, *WITHOUT[name], id=f"{module.__name__}-{name}")
    for module in COUPLED + BASELINES
    for name in WITHOUT
    if name not in MEANINGLESS.get(module, ())
]


@pytest.mark.parametrize(("module", "word", "arguments"), EMPTY)
def test_batch_without_a_relation_is_an_error(module, word, arguments):
    with pytest.raises(ValueError, match=rf"{word}.*empty"):
        module()(rows(), **arguments)


@pytest.mark.parametrize(("module", "word", "arguments"), EMPTY)
def test_batch_without_a_relation_can_be_a_zero_with_a_gradient_path(module, word, arguments):
    leaf = rows().requires_grad_()
    loss = module(empty="zero")(leaf, **arguments)
    assert loss.ndim == 0
    assert float(loss.detach()) == 0.0
    assert loss.requires_grad
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(gradient, torch.zeros_like(leaf))


@MODULES
def test_zero_for_empty_batches_changes_no_other_batch(module):
    batch = {"labels": LABELS, "ref_emb": rows(), "ref_labels": LABELS}
    assert torch.equal(module(empty="zero")(rows(), **batch), module()(rows(), **batch))


@MODULES
def test_zero_for_empty_batches_does_not_hide_bad_values(module):
    with pytest.raises(ValueError, match="embeddings"):
        module(empty="zero")(with_entry(math.nan), torch.arange(6))


@pytest.mark.parametrize("views", [(), (rows(4), rows(5)), (rows(4, 3), rows(4, 2))])
def test_pair_views_needs_views_of_one_shape(views):
    with pytest.raises((ValueError, TypeError), match="view"):
        tc.pair_views(*views)


def test_a_sharpness_beyond_all_numbers_is_refused():
    for criterion in (tc.NegMMIOT(1e-200, 1e-200), tc.PushPull(1e-200, 1e-200, 1e-200)):
        with pytest.raises(ValueError, match=r"temperature 1e-200 times epsilon 1e-200.*too small"):
            criterion(rows(), LABELS)
    with pytest.raises(ValueError, match=r"too large for torch\.float64"):
        tc.NegMMIOT(torch.tensor(1e-39), 0.1)(rows(), LABELS)


def test_vicreg_refuses_embeddings_whose_covariances_overflow():
    large = rows(90, 3) * 1e30  # more pairs than a tiny batch, which is computed in float64
    with pytest.raises(ValueError, match=r"embeddings as large as .*e\+30 make VICReg overflow"):
        tc.VICReg()(large, torch.arange(90) // 2)
    assert torch.isfinite(tc.VICReg()(large.double(), torch.arange(90) // 2))
    with pytest.raises(ValueError, match=r"make VICReg overflow in torch\.float32"):
        tc.VICReg()(large[:8], torch.arange(8) // 2)
    assert torch.isfinite(tc.VICReg()(large[:8].double(), torch.arange(8) // 2))


@pytest.mark.parametrize("module", [m for m in COUPLED + BASELINES if m is not tc.FusedGromov])
def test_without_reading_values_nan_makes_the_loss_nan(module):
    criterion = module(check="shapes")
    embeddings = with_entry(math.nan).requires_grad_()
    criterion(embeddings, LABELS).backward()
    assert not embeddings.grad.isfinite().all()
    assert any(math.isnan(value) for value in criterion.diagnostics().values())
    with pytest.raises(ValueError, match="non-empty matrix"):
        criterion(rows()[:, 0], LABELS)


@MODULES
def test_without_reading_values_good_batches_are_the_same(module):
    across = {"ref_emb": rows() + 1, "ref_labels": LABELS} if module is tc.FusedGromov else {}
    wanted = module()(1e-30 * rows(), LABELS, **across)
    found = module(check="shapes")(1e-30 * rows(), LABELS, **across)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_a_loss_that_overflows_is_an_error():
    z, y = torch.randn(16, 4), torch.arange(16) % 4
    steep = tc.NegMMIOT(temperature=0.1, epsilon=1.0, shaping=lambda t: torch.exp(-30 * t))
    with pytest.raises(ValueError, match=r"exceed the range of torch\.float32"):
        steep(z, y)
