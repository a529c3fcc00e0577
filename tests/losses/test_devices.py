"""The path of an accelerator: the numbers of the host's path, and nothing read from the device."""

import math
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import tricouple as tc
from tricouple import checks, numeric
from tricouple.ot import engine
from tricouple.ot.sweeps.log_sigmoid import rule_of

SHAPINGS = ("linear", "log_sigmoid", "hinge", "exponential")
LOSSES = {
    **{f"NegMMIOT-{name}": (tc.NegMMIOT, {"shaping": name}) for name in SHAPINGS},
    "NegMMIOT-envelope": (tc.NegMMIOT, {"gradient": "envelope"}),
    "NegMMIOT-implicit": (tc.NegMMIOT, {"gradient": "implicit", "epsilon": 1.0, "n_iters": 60}),
    "NegMMIOT-tol": (tc.NegMMIOT, {"tol": 0.05}),
    "NegMMIOT-tol-hinge": (tc.NegMMIOT, {"tol": 0.05, "shaping": "hinge"}),
    "NegMMIOT-tol-log_sigmoid": (tc.NegMMIOT, {"tol": 0.05, "shaping": "log_sigmoid"}),
    "NegMMIOT-target": (tc.NegMMIOT, {"marginals": "target"}),
    "NegMMIOT-classes": (tc.NegMMIOT, {"marginals": "classes"}),
    "NegMMIOT-streamed": (tc.NegMMIOT, {"memory": "streamed", "memory_budget": 60_000}),
    "PushPull": (tc.PushPull, {}),
    "PushPull-tol": (tc.PushPull, {"tol": 0.05}),
    "PushPull-exponential": (tc.PushPull, {"shaping": "exponential"}),
    "IOT": (tc.IOT, {}),
    "IOT-uniformity": (tc.IOT, {"uniformity": 0.2}),
    "InfoNCE": (tc.InfoNCE, {}),
    "InvaSpread": (tc.InvaSpread, {}),
    "DBOT": (tc.DBOT, {}),
    "VICReg": (tc.VICReg, {}),
    "FusedGromov": (tc.FusedGromov, {}),
}
ALL = pytest.mark.parametrize("name", LOSSES)
SETTINGS = pytest.mark.parametrize("setting", ["within", "across", "among"])
MEANINGLESS = {("FusedGromov", "within"), ("FusedGromov", "among"), ("VICReg", "among")}
EVERYWHERE = pytest.mark.parametrize(
    ("name", "setting"),
    [case for case in product(LOSSES, ("within", "across", "among")) if case not in MEANINGLESS],
)


def loss(name, **options):
    module, own = LOSSES[name]
    return module(**own | options)


def short(name, **options):
    """Two sweeps."""
    coupled = LOSSES[name][0] in (tc.NegMMIOT, tc.PushPull, tc.IOT)
    return loss(name, **({"n_iters": 2} if coupled else {}), **options)


def batch(n, dtype=torch.float64, setting="within", device=None):
    """Unbalanced classes, one of them alone."""
    generator = torch.Generator().manual_seed(0) if device is None else None
    labels = torch.arange(n, device=device) % 5 * (torch.arange(n, device=device) > 0) + 7
    arguments = {"labels": labels}
    if setting != "within":
        arguments["ref_emb"] = torch.randn(
            n + 3, 6, generator=generator, dtype=dtype, device=device
        )
        arguments["ref_labels"] = torch.arange(n + 3, device=device) % 5 + 7
    if setting == "among":
        arguments["ref_index"] = torch.arange(n, device=device)
    return torch.randn(n, 6, generator=generator, dtype=dtype, device=device), arguments


@pytest.fixture
def as_device(monkeypatch):
    """From now on the CPU is treated like an accelerator."""
    rule_of(1 / 0.1, 1e-3)  # chosen once for all, on the host
    return lambda: monkeypatch.setattr(numeric, "_HOSTS", frozenset())


def value_and_gradients(criterion, embeddings, arguments, temperature=None):
    leaves = {"embeddings": embeddings, "ref_emb": arguments.get("ref_emb")}
    leaves["temperature"] = None if temperature is None else torch.tensor([temperature])
    leaves = {k: v.clone().requires_grad_() for k, v in leaves.items() if v is not None}
    value = criterion(**arguments | leaves)
    return [value.detach(), *torch.autograd.grad(value, list(leaves.values()))]


def assert_same(found, wanted, tolerance):
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= tolerance * other.norm() + 1e-30


@EVERYWHERE
def test_path_of_a_device_has_the_numbers_of_the_host(name, setting, as_device):
    options = {"kernel_tol": 1e-13} if "NegMMIOT" in name else {}
    if "streamed" in name:
        options["memory_budget"] = 2000
    learnt = None if name == "VICReg" else 0.7
    problem = loss(name, **options), *batch(14, torch.float64, setting), learnt
    wanted = value_and_gradients(*problem)
    as_device()
    assert_same(value_and_gradients(*problem), wanted, 1e-10)


@pytest.mark.parametrize("sharpness", [0.1, 3.0, 100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("name", ["NegMMIOT-linear", "NegMMIOT-hinge", "PushPull", "IOT"])
def test_path_of_a_device_is_right_for_any_sharpness(name, sharpness, as_device):
    criterion = loss(name, sharpness=sharpness)
    embeddings, arguments = batch(12)
    embeddings[3], embeddings[4] = embeddings[8], -embeddings[9]
    problems = [(criterion, embeddings, arguments), (criterion, *batch(66, torch.float32))]
    wanted = [value_and_gradients(*problem) for problem in problems]
    as_device()
    for problem, same, tolerance in zip(problems, wanted, (1e-10, 1e-5), strict=True):
        assert_same(value_and_gradients(*problem), same, tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_terms_of_log_sigmoid_are_the_same_on_a_device(dtype, as_device, monkeypatch):
    exact = dtype == torch.float64
    criterion = tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-13 if exact else 1e-6, n_iters=4)
    problem = criterion, *batch(12 if exact else 66, dtype)
    wanted = value_and_gradients(*problem)
    as_device()
    monkeypatch.setattr(engine, "_ANCHORS", 0)  # or so few samples would do without terms
    assert_same(value_and_gradients(*problem), wanted, 1e-10 if exact else 1e-5)


@pytest.mark.parametrize("shaping", ["linear", "hinge", "log_sigmoid"])
@pytest.mark.parametrize(
    "rows",
    [torch.ones(6, 3), torch.cat([torch.ones(3, 3), -torch.ones(3, 3)]), torch.eye(6)],
    ids=["equal", "antipodal", "orthogonal"],
)
def test_degenerate_batches_are_the_same_on_a_device(shaping, rows, as_device):
    criterion = tc.NegMMIOT(0.1, 0.1, shaping=shaping, kernel_tol=1e-13)
    arguments = {"labels": torch.tensor([0, 0, 1, 1, 2, 3])}
    wanted = value_and_gradients(criterion, rows.double(), arguments)
    as_device()
    found = value_and_gradients(criterion, rows.double(), arguments)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_sweeps_stop_changing_on_a_device_where_they_stop_on_the_host(as_device):
    criterion = tc.NegMMIOT(sharpness=5, tol=1e-3, n_iters=40)
    embeddings, arguments = batch(14)
    criterion(embeddings, **arguments)
    wanted = criterion.diagnostics()
    assert 1 < wanted["sweeps"] < 40
    as_device()
    criterion(embeddings, **arguments)
    assert criterion.diagnostics() == pytest.approx(wanted, rel=1e-6)


@SETTINGS
@pytest.mark.parametrize("name", ["NegMMIOT-linear", "NegMMIOT-log_sigmoid", "NegMMIOT-hinge"])
def test_nothing_is_read_from_a_device_that_has_no_numbers(name, setting, as_device):
    """Forward and backward on fake tensors, which refuse to be read."""
    as_device()
    criterion = short(name, check="shapes")
    with FakeTensorMode():
        embeddings, arguments = batch(70, torch.float32, setting, "cpu")
        leaves = [embeddings.requires_grad_(), torch.ones((), requires_grad=True)]
        arguments["temperature"] = leaves[-1]
        value = criterion(embeddings, **arguments)
        with pytest.raises(DataDependentOutputException):
            float(value.detach())
        for part in torch.autograd.grad(value, leaves):
            assert part.device == embeddings.device


@ALL
def test_one_reading_settles_all_doubts(name, as_device, monkeypatch):
    as_device()
    readings = []

    def settle(doubts, team):
        readings.append(len(doubts._flags))
        doubts.known = None if doubts.number is None else 0.5

    monkeypatch.setattr(checks.Doubts, "settle", settle)
    with FakeTensorMode():
        embeddings, arguments = batch(70, torch.float32, "across", "cpu")
        if name != "VICReg":
            arguments["temperature"] = torch.ones((), requires_grad=True)
        short(name)(embeddings.requires_grad_(), **arguments).backward()
    (flags,) = readings
    assert flags >= 3 - (name in ("IOT", "VICReg"))


# Listed twice, some of them; all of one class, as PyTorch Metric Learning's miners give them.
TRIPLETS = [[0, 0, 1, 1, 4], [5, 5, 6, 2, 9], [1, 1, 2, 7, 3]]
PAIRS = [[0, 0, 0, 1, 4], [5, 5, 10, 6, 9], [0, 0, 1, 4], [1, 1, 2, 3]]


@pytest.mark.parametrize("indices", [TRIPLETS, PAIRS], ids=["triplets", "pairs"])
@pytest.mark.parametrize(
    "name",
    [n for n in LOSSES if not n.startswith(("Fused", "VIC")) and "classes" not in n],
)
def test_lists_of_miners_are_not_counted_on_a_device(name, indices, as_device):
    """The numbers of the host, and nothing is read."""
    options = {"kernel_tol": 1e-13} if "NegMMIOT" in name else {}
    criterion, embeddings = short(name, check="shapes", **options), batch(14)[0]
    if "implicit" in name:
        criterion = loss(name, check="shapes", n_iters=300)
    arguments = {"labels": None, "indices_tuple": tuple(map(torch.tensor, indices))}
    wanted = value_and_gradients(criterion, embeddings, arguments)
    as_device()
    assert_same(value_and_gradients(criterion, embeddings, arguments), wanted, 1e-9)
    with FakeTensorMode() as mode:
        fake = tuple(mode.from_tensor(values) for values in arguments["indices_tuple"])
        embeddings = batch(14, device="cpu")[0].requires_grad_()
        short(name, check="shapes")(embeddings, indices_tuple=fake).backward()


def test_bad_lists_of_miners_are_errors_on_a_device_too(as_device):
    as_device()
    for wrong, message in (
        ([[0, 1], [5, 99], [1, 2]], r"\(p\) must be between 0 and 13, got 5 … 99"),
        ([[0, 1], [5, 2], [1, 2]], "triplets of distinct samples, entry 1"),
        ([[0, 1], [5, 2], [1, 1], [2, 2]], r"the pair \(1, 2\) as positive"),
    ):
        with pytest.raises(ValueError, match=message):
            tc.NegMMIOT()(batch(14)[0], indices_tuple=tuple(map(torch.tensor, wrong)))


OTHERS = {"beyond": (3, 99), "twice": (3, 8), "of another label": (3, 4), "none": (3, -1)}


@pytest.mark.parametrize("wrong", OTHERS)
@pytest.mark.parametrize("name", ["PushPull", "InfoNCE"])
def test_a_reference_that_is_no_anchor_is_an_error_or_makes_the_loss_nan(name, wrong, as_device):
    embeddings, arguments = batch(14, setting="among")
    row, reference = OTHERS[wrong]
    arguments["ref_index"][row] = reference
    as_device()
    if (name, wrong) == ("InfoNCE", "none"):  # which needs not know all
        assert loss(name)(embeddings, **arguments).isfinite()
        return
    with pytest.raises(ValueError, match="ref_index"):
        loss(name)(embeddings, **arguments)
    if wrong != "beyond":  # which is an assertion of the device
        assert loss(name, check="shapes")(embeddings, **arguments).isnan()


def test_an_error_of_one_process_is_raised_by_all():
    """Learnt temperatures are looked at with all else, by each process its own."""

    class Team:
        def max_(self, flags):
            return flags.copy_(torch.maximum(flags, torch.tensor(theirs)))

    for ours, theirs, known in ((2.0, 1.0, None), (2.0, 0.0, 2.0), (-1.0, 0.0, None)):
        doubts, value = checks.Doubts(), torch.tensor(ours)
        doubts.number = value
        doubts.add(value < 0, lambda value=value: checks.positive_number("temperature", value))
        if known is None:
            with pytest.raises(ValueError, match="another process" if theirs else "got -1"):
                doubts.settle(Team())
        else:
            assert doubts.settle(Team()) is None
            assert doubts.known == known


@EVERYWHERE
def test_nothing_is_read_from_tensors_of_another_device(name, setting, monkeypatch):
    """Of the meta device, the only other one of every build: it has shapes and no numbers."""
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    embeddings, arguments = batch(70, torch.float32, setting, "meta")
    value = short(name, check="shapes")(embeddings.requires_grad_(), **arguments)
    value.backward()
    assert value.device == embeddings.grad.device == torch.device("meta")
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        float(value)


class Launches(TorchDispatchMode):
    """Counts operators that compute something."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.number += not operator.is_view
        return operator(*args, **kwargs or {})


# Of a step with 1024 samples and ten sweeps, forward and backward: as docs/accelerators.md has it.
LAUNCHES = {
    "NegMMIOT-linear": (402, 536),
    "NegMMIOT-log_sigmoid": (535, 715),
    "NegMMIOT-hinge": (1395, 2160),
    "PushPull": (285, 294),
    "IOT": (151, 151),
    "InfoNCE": (65, 29),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_of_a_step_are_counted(name, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())
    rule_of(1 / 0.1, 1e-3)
    embeddings = torch.randn(1024, 64, device="meta", requires_grad=True)
    labels = torch.arange(1024, device="meta") % 512
    with Launches() as forward:
        value = loss(name, check="shapes")(embeddings, labels)
    with Launches() as backward:
        value.backward()
    for found, wanted in zip((forward.number, backward.number), LAUNCHES[name], strict=True):
        assert 0.9 * wanted < found <= wanted + 5


def test_launches_are_those_of_the_documentation():
    page = (Path(tc.__file__).parents[2] / "docs" / "accelerators.md").read_text()
    for name, numbers in LAUNCHES.items():
        words = " ".join(name.replace("-", " ").replace("_", "-").split())
        assert f"| {words} | {numbers[0]} | {numbers[1]} |" in page


@pytest.fixture
def user_allows_tf32():
    """By PyTorch's older word for it."""
    torch.set_float32_matmul_precision("high")
    yield torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["NegMMIOT-linear", "PushPull", "InfoNCE", "InvaSpread"])
def test_products_on_a_device_keep_all_digits(name, monkeypatch, user_allows_tf32):
    """In the forward and in the backward pass; the user's setting is as it was afterwards."""
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())
    products, before = user_allows_tf32, user_allows_tf32.fp32_precision
    assert before == "tf32"
    seen = []

    def noting(multiply):
        def noted(*args, **options):
            seen.append(products.fp32_precision)
            return multiply(*args, **options)

        return noted

    monkeypatch.setattr(torch, "mm", noting(torch.mm))
    monkeypatch.setattr(torch.Tensor, "addmm_", noting(torch.Tensor.addmm_))
    embeddings, arguments = batch(70, torch.float32, "across", "meta")
    value = short(name, check="shapes")(embeddings.requires_grad_(), **arguments)
    forward = len(seen)
    value.backward()
    assert forward > 0
    assert set(seen) == {"ieee"}
    if name != "InvaSpread":  # whose products are operators there
        assert forward < len(seen)
    assert products.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "high"


def test_older_pytorch_knows_tf32_by_another_name(monkeypatch):
    older = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", older)
    with numeric.ieee_products(torch.device("cuda")):
        assert older.allow_tf32 is False
    assert older.allow_tf32 is True
    with numeric.ieee_products(torch.device("cpu")):
        assert older.allow_tf32 is True


@pytest.mark.parametrize("fallen", [0.1, 3.9])
def test_learnt_temperature_of_log_sigmoid_is_not_read(fallen, as_device, monkeypatch):
    """It has terms for temperatures down to a quarter of that which the loss was made with."""
    options = {"shaping": "log_sigmoid", "kernel_tol": 1e-9, "n_iters": 4}
    criterion = tc.NegMMIOT(0.8, check="shapes", **options)
    problem = *batch(40), 0.8 / fallen
    wanted = value_and_gradients(criterion, *problem)
    as_device()
    monkeypatch.setattr(engine, "_ANCHORS", 0)  # or so few samples would do without terms
    assert_same(value_and_gradients(criterion, *problem), wanted, 1e-8)
    with FakeTensorMode():
        embeddings, arguments = batch(40, device="cpu")
        leaves = embeddings.requires_grad_(), torch.ones((), requires_grad=True)
        torch.autograd.grad(criterion(embeddings, **arguments, temperature=leaves[1]), leaves)


def test_log_sigmoid_is_nan_where_an_unread_temperature_asks_for_more_terms(as_device, monkeypatch):
    as_device()
    monkeypatch.setattr(engine, "_ANCHORS", 0)
    cold = torch.tensor(0.02)
    criterion = tc.NegMMIOT(0.8, shaping="log_sigmoid", check="shapes", n_iters=2)
    assert criterion(*batch(20)[:1], **batch(20)[1], temperature=cold).isnan()
    criterion.check = "full"  # which reads it
    assert criterion(*batch(20)[:1], **batch(20)[1], temperature=cold).isfinite()


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE, tc.VICReg])
def test_errors_of_the_host_are_raised_from_a_device(module, as_device):
    as_device()
    embeddings, arguments = batch(10)
    embeddings[4, 2] = math.nan
    with pytest.raises(ValueError, match=r"embeddings must be finite, found NaN .* in row 4"):
        module()(embeddings, **arguments)
    embeddings, _ = batch(10)
    with pytest.raises(ValueError, match="no positive pair"):
        module()(embeddings, torch.arange(10))
    if module is not tc.VICReg:
        embeddings[3] = 0.0
        with pytest.raises(ValueError, match="zero vectors, row 3"):
            module()(embeddings, **arguments)
        with pytest.raises(ValueError, match="temperature must be finite and > 0, got -1"):
            module()(embeddings, **arguments, temperature=torch.tensor(-1.0))
        with pytest.raises(ValueError, match="no negative pair"):
            module()(batch(10)[0], torch.zeros(10).long())


@ALL
def test_batch_without_pairs_on_a_device_is_nan_or_nothing(name, as_device):
    """Without a reading the loss cannot raise: it is not finite, or 0 as asked for."""
    as_device()
    setting = "across" if name == "FusedGromov" else "within"
    embeddings, arguments = batch(6, setting=setting)
    arguments["labels"] = torch.arange(6) + 100
    assert loss(name, check="shapes")(embeddings, **arguments).isnan()
    for check in ("shapes", "full"):
        criterion = loss(name, check=check, empty="zero")
        for part in value_and_gradients(criterion, embeddings, arguments):
            assert not part.any()


@ALL
def test_bad_numbers_on_a_device_make_the_loss_nan(name, as_device):
    as_device()
    setting = "across" if name == "FusedGromov" else "within"
    embeddings, arguments = batch(14, setting=setting)
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = embeddings.clone()
        spoilt[3, 1] = bad
        assert not loss(name, check="shapes")(spoilt, **arguments).isfinite()
