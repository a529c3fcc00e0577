"""Bad input is an error that names the argument and the value found; never a silent NaN."""

import math
from functools import partial

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
def test_batch_without_a_relation_is_an_error_or_a_zero_with_a_gradient_path(
    module, word, arguments
):
    leaf = rows().requires_grad_()
    with pytest.raises(ValueError, match=rf"{word}.*empty"):
        module()(leaf, **arguments)
    loss = module(empty="zero")(leaf, **arguments)
    assert loss.ndim == 0
    assert float(loss.detach()) == 0.0
    assert loss.requires_grad
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(gradient, torch.zeros_like(leaf))


@MODULES
def test_zero_for_empty_batches_changes_no_other_batch_and_hides_no_bad_values(module):
    batch = {"labels": LABELS, "ref_emb": rows(), "ref_labels": LABELS}
    assert torch.equal(module(empty="zero")(rows(), **batch), module()(rows(), **batch))
    with pytest.raises(ValueError, match="embeddings"):
        module(empty="zero")(with_entry(math.nan), torch.arange(6))


def test_vicreg_refuses_embeddings_whose_covariances_overflow():
    large = rows(90, 3) * 1e30  # more pairs than a tiny batch, which is computed in float64
    with pytest.raises(ValueError, match=r"embeddings as large as .*e\+30 make VICReg overflow"):
        tc.VICReg()(large, torch.arange(90) // 2)
    assert torch.isfinite(tc.VICReg()(large.double(), torch.arange(90) // 2))
    with pytest.raises(ValueError, match=r"make VICReg overflow in torch\.float32"):
        tc.VICReg()(large[:8], torch.arange(8) // 2)
    assert torch.isfinite(tc.VICReg()(large[:8].double(), torch.arange(8) // 2))


SHAPED = [
    partial(tc.NegMMIOT, shaping=shaping, memory=memory)
    for shaping in ("linear", "log_sigmoid", "hinge")
    for memory in ("matrices", "streamed")
]


@pytest.mark.parametrize(
    "module", [m for m in COUPLED + BASELINES + SHAPED if m is not tc.FusedGromov]
)
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


# --- What has no meaning together ----------------------------------------------------------------

X, Y, ONES = rows(4), torch.tensor([0, 0, 1, 1]), torch.ones(4)
ACROSS = {"ref_emb": X, "ref_labels": Y}
OWN = {"ref_index": [0, 1, 2, 3]}
TRIPLETS = {"indices_tuple": triplet([0], [1], [2])}
PAIRS = {"indices_tuple": triplet([0], [1], [0], [2])}
W = torch.ones(4, 4)
MATRIX = {"pairs": W.triu()}
WEIGHTED = {"labels": Y, "weights": ONES}
WIDE = {"pairs": torch.ones(4, 5), "weights": ONES}
STREAMED, CLASSES = {"memory": "streamed"}, {"marginals": "classes"}


def pairs(matrix, **more):
    return tc.NegMMIOT()(X, pairs=matrix, **more)


def placed(index):
    return tc.NegMMIOT()(X, Y, **ACROSS, ref_index=index)


fine = tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-9)  # finer than float32


def steep(t):
    return torch.exp(-99 * t)


MEANINGLESS_CALLS = [
    ("uniformity=0.2.*gradient", lambda: tc.IOT(uniformity=0.2, gradient="envelope")),
    ("memory='matrices'", lambda: tc.IOT(uniformity=0.2, **STREAMED)),
    ("needs shaping='linear'", lambda: tc.PushPull(shaping="hinge", **STREAMED)(X, Y)),
    ("shaping must be a name or a callable", lambda: tc.NegMMIOT(shaping=3)),
    ('margin=2.0 is that of shaping="hinge", got', lambda: tc.NegMMIOT(margin=2.0)),
    ("margin must be .* 0 or more", lambda: tc.NegMMIOT(shaping="hinge", margin=-1.0)),
    ("kernel_tol .* got 1e-09", lambda: fine(rows(90, 4), torch.arange(90) % 3)),
    ("times epsilon 1e-200.*too small", lambda: tc.NegMMIOT(1e-200, 1e-200)(X, Y)),
    ("times epsilon 1e-200.*too small", lambda: tc.PushPull(1e-200, 1e-200, 1e-200)(X, Y)),
    (r"too large for torch\.float64", lambda: tc.NegMMIOT(torch.tensor(1e-39), 0.1)(X, Y)),
    ("slope", lambda: tc.shaping.Hinge(slope=-1.0)),
    ("temperature", lambda: tc.NegMMIOT(tau=0.1)),
    ("temperature", lambda: tc.InfoNCE(tau=0.1)),
    ("bias must be a number or a tensor, got 'none'", lambda: tc.SigLIP(bias="none")),
    ("bias must be one finite number", lambda: tc.SigLIP(bias=math.nan)),
    ("bias must be one finite number", lambda: tc.SigLIP(bias=torch.zeros(2))),
    ("view", lambda: tc.pair_views()),
    ("view", lambda: tc.pair_views(rows(4), rows(5))),
    ("view", lambda: tc.pair_views(rows(4, 3), rows(4, 2))),
    ("needs classes: pass labels", lambda: tc.NegMMIOT(**CLASSES)(X, **TRIPLETS)),
    ("needs classes: pass labels", lambda: tc.PushPull(**CLASSES)(X, **PAIRS)),
    ("needs classes: pass labels", lambda: tc.IOT(**CLASSES)(X, **TRIPLETS)),
    ('"classes" needs .* without weights', lambda: tc.NegMMIOT(**CLASSES)(X, **WEIGHTED)),
    ('"classes" needs classes.*matrices', lambda: tc.IOT(**CLASSES)(X, **MATRIX)),
    ("pairs must be a torch.Tensor, got list", lambda: tc.InfoNCE()(X, pairs=[[0]])),
    ("pairs and labels both", lambda: pairs(W, labels=Y)),
    ("pairs and indices_tuple both", lambda: pairs(W, **TRIPLETS)),
    ("pairs and ref_labels both", lambda: pairs(W, **ACROSS)),
    (r"pairs must be .* shape \(4, 4\).*\(3, 4\)", lambda: pairs(W[:3])),
    (r"pairs must be .* shape \(4, 5\)", lambda: pairs(W, ref_emb=rows(5))),
    ("pairs must be bool or non-negative numbers .*complex64", lambda: pairs(W + 0j)),
    ("pairs must be finite and non-negative, got -1.0 in row 0", lambda: pairs(W - 2)),
    ("pairs must be finite .*row 0", lambda: pairs(W / (W.triu() - W))),
    ("pairs .*got nan in row 2", lambda: pairs(W.index_fill(0, Y.new_tensor([2]), math.nan))),
    (r"weights must be .* shape \(4,\)", lambda: tc.NegMMIOT()(X, Y, weights=ONES[:3])),
    ("weights must be .*non-negative, got -1.0", lambda: tc.NegMMIOT()(X, Y, weights=-ONES)),
    ("weights must be finite .*got inf in row 0", lambda: tc.NegMMIOT()(X, Y, weights=ONES / 0)),
    ("one text per image, got 5 and 4", lambda: tc.BothDirections(tc.IOT())(X, rows(5), **WIDE)),
    ("one set.*pair_views", lambda: tc.InfoNCE(partition="joint")(X, Y, **ACROSS)),
    ("one set.*pair_views", lambda: tc.InfoNCE(partition="joint")(X, **MATRIX)),
    ("ref_index .*needs ref_emb and labels", lambda: tc.NegMMIOT()(X, Y, **OWN)),
    ("ref_index .*not indices_tuple", lambda: tc.NegMMIOT()(X, **TRIPLETS, ref_emb=X, **OWN)),
    (r"ref_index must hold .* shape \(4,\), got \(3,\)", lambda: placed([0, 1, 2])),
    (r"ref_index.* between 0 and 3, or -1 .* got -2", lambda: placed([0, -2, 2, 3])),
    (r"ref_index.* between 0 and 3, .* … 4", lambda: placed([0, 1, 2, 4])),
    ("ref_index.*several anchors are to be reference 0", lambda: placed([0, 0, 2, 3])),
    ("ref_index.*anchor 1 is reference 2, but their labels", lambda: placed([0, 2, 1, 3])),
    ("ref_index.*integers", lambda: placed([0.5] * 4)),
    ("ref_index have no meaning for VICReg", lambda: tc.VICReg()(X, Y, **ACROSS, **OWN)),
    ("sharpness", lambda: tc.VICReg(sharpness=10)),
    ("VICReg has no temperature", lambda: tc.BothDirections(tc.VICReg(), learn=True)),
    ("temperature=0.1 has no meaning for VICReg", lambda: tc.VICReg()(X, Y, temperature=0.1)),
    ("pairs, weights, .* have no meaning for VICReg", lambda: tc.VICReg()(X, **MATRIX)),
    ("pairs, weights, .* have no meaning for VICReg", lambda: tc.VICReg()(X, **WEIGHTED)),
    ("indices_tuple.*pair_views", lambda: tc.VICReg()(X, **TRIPLETS)),
    ("second positive pair", lambda: tc.VICReg()(X, torch.tensor([0, 0, 1, 2]))),
    ("within one set.*ref_emb.*IOT", lambda: tc.FusedGromov()(X, Y)),
    ("within one set.*ref_emb.*IOT", lambda: tc.FusedGromov(empty="zero")(X, **TRIPLETS)),
    ("published.*within one set.*formula", lambda: tc.DBOT(variant="published")(X, Y)),
    (r"exceed the range of torch\.float32", lambda: tc.NegMMIOT(1.0, 1.0, shaping=steep)(X, Y)),
]


@pytest.mark.parametrize(("words", "call"), MEANINGLESS_CALLS)
def test_what_has_no_meaning_is_refused(words, call):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
