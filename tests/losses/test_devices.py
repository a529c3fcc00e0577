"""The path of an accelerator: the numbers of the CPU's path, few operations, nothing read back.

There is no accelerator here: the CPU is treated like one, and fake tensors refuse to be read.
"""

from itertools import product

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_leaves

import tricouple as tc
from conftest import VARIANTS
from reference import Watch, assert_same
from tricouple import numeric

MEANINGLESS = {("FusedGromov", "within"), ("FusedGromov", "among"), ("VICReg", "among")}
CASES = [
    case for case in product(VARIANTS, ("within", "across", "among")) if case not in MEANINGLESS
]
EVERYWHERE = pytest.mark.parametrize(("name", "setting"), CASES)


def batch(n, dtype=torch.float64, setting="within", *, fake=False):
    """Unbalanced classes, one of them with one sample; "among": anchors are among references."""
    generator = None if fake else torch.Generator().manual_seed(0)
    if setting == "listed":
        even = torch.arange(0, n, 2)
        arguments = {"indices_tuple": (even, even + 1, (even + 3) % n)}
        return torch.randn(n, 6, generator=generator, dtype=dtype), arguments
    arguments = {"labels": torch.arange(n) % 5 * (torch.arange(n) > 0) + 7}
    if setting != "within":
        arguments["ref_emb"] = torch.randn(n + 3, 6, generator=generator, dtype=dtype)
        arguments["ref_labels"] = torch.arange(n + 3) % 5 + 7
    if setting == "among":
        arguments["ref_index"] = torch.arange(n)
        arguments["ref_labels"][0] = 7
    return torch.randn(n, 6, generator=generator, dtype=dtype), arguments


@pytest.fixture
def as_device(monkeypatch):
    """From now on the CPU is treated like an accelerator."""
    return lambda: monkeypatch.setattr(numeric, "HOST", "none")


def value_and_gradients(criterion, embeddings, arguments, temperature=None):
    leaves = {"embeddings": embeddings, "ref_emb": arguments.get("ref_emb")}
    leaves["temperature"] = None if temperature is None else torch.tensor([temperature])
    leaves = {k: v.clone().requires_grad_() for k, v in leaves.items() if v is not None}
    value = criterion(**arguments | leaves)
    return [value.detach(), *torch.autograd.grad(value, list(leaves.values()))]


@EVERYWHERE
def test_path_of_a_device_has_the_numbers_of_the_cpu(name, setting, as_device):
    options = {"kernel_tol": 1e-13} if "NegMMIOT" in name else {}
    problem = *batch(14, torch.float64, setting), None if name == "VICReg" else 0.7
    unwatched = options | ({"tol": None} if "tol" in name else {})  # a device does all iterations
    wanted = value_and_gradients(VARIANTS[name](**unwatched), *problem)
    as_device()
    assert_same(value_and_gradients(VARIANTS[name](**options), *problem), wanted, 1e-10)


@pytest.mark.parametrize("sharpness", [0.1, 3.0, 100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("name", ["NegMMIOT", "NegMMIOT-hinge", "PushPull", "IOT"])
def test_path_of_a_device_is_right_at_any_sharpness(name, sharpness, as_device):
    criterion = VARIANTS[name](sharpness=sharpness)
    embeddings, arguments = batch(12)
    embeddings[3], embeddings[4] = embeddings[8], -embeddings[9]
    problems = [(criterion, embeddings, arguments), (criterion, *batch(66, torch.float32))]
    wanted = [value_and_gradients(*problem) for problem in problems]
    as_device()
    bounds = max(1e-10, sharpness * 1e-12), max(1e-5, sharpness * 1e-7)
    for problem, same, tolerance in zip(problems, wanted, bounds, strict=True):
        assert_same(value_and_gradients(*problem), same, tolerance)


@pytest.mark.parametrize("sharpness", [20.0, 60.0])
def test_lost_digits_are_found_on_a_device(sharpness, as_device):
    """A repeated step by rows with check="full", NaN with "shapes"; never a wrong number."""
    embeddings = torch.ones(80, 4).double() + 1e-2 * torch.randn(80, 4)
    embeddings[0] *= -1
    problem = embeddings, {"labels": torch.arange(80) // 2}
    wanted = value_and_gradients(tc.NegMMIOT(sharpness=sharpness), *problem)
    as_device()
    found = value_and_gradients(tc.NegMMIOT(sharpness=sharpness), *problem)
    assert_same(found, wanted, 1e-8)
    unread = value_and_gradients(tc.NegMMIOT(sharpness=sharpness, check="shapes"), *problem)
    assert unread[0].isnan() or abs(unread[0] - wanted[0]) <= 1e-5 * abs(wanted[0])


@EVERYWHERE
def test_nothing_is_read_from_a_device(name, setting, as_device):
    """Forward and backward on fake tensors, which refuse to be read."""
    as_device()
    short = {"n_iters": 2} if VARIANTS[name].func in (tc.NegMMIOT, tc.PushPull, tc.IOT) else {}
    criterion = VARIANTS[name](check="shapes", **short)
    with FakeTensorMode():
        embeddings, arguments = batch(70, torch.float32, setting, fake=True)
        leaves = [embeddings.requires_grad_()]
        if name != "VICReg":
            leaves.append(torch.ones((), requires_grad=True))
            arguments["temperature"] = leaves[-1]
        value = criterion(embeddings, **arguments)
        with pytest.raises(DataDependentOutputException):
            float(value.detach())
        for part in torch.autograd.grad(value, leaves):
            assert part.device == embeddings.device


LINEAR = ("NegMMIOT", "NegMMIOT-streamed", "PushPull", "IOT", "InfoNCE")


@pytest.mark.parametrize(
    ("name", "setting", "n"),
    [(*case, 66) for case in CASES if case[0] != "NegMMIOT-exponential"]
    + [*product(LINEAR, ("within", "across", "listed"), [1100])],
)
def test_another_default_device_changes_nothing(name, setting, n):
    problem = VARIANTS[name](), *batch(n, torch.float64, setting)
    wanted = value_and_gradients(*problem)
    with torch.device("meta"):
        assert_same(value_and_gradients(*problem), wanted, 0.0)


@pytest.mark.parametrize("name", ["NegMMIOT", "PushPull", "IOT", "InfoNCE"])
def test_all_checks_are_read_at_once(name, as_device, monkeypatch):
    embeddings, arguments = batch(70, torch.float32, "across")
    as_device()
    read, called, before = [], [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: read.append(1) or before(self))
    with Watch(lambda function, *_: called.append(function)):
        VARIANTS[name]()(embeddings.requires_grad_(), **arguments).backward()
    assert len(read) == 1
    assert torch.ops.aten._local_scalar_dense.default not in called  # a wait for the device
    assert torch.ops.aten.mm.default in called


@pytest.mark.parametrize(
    ("name", "operations", "matrices"),
    [
        ("NegMMIOT", 2000, 45),
        ("PushPull", 1300, 60),
        ("IOT", 700, 30),
        ("InfoNCE", 170, 10),
    ],
)
def test_a_step_takes_few_operations_and_writes_few_matrices(name, operations, matrices, as_device):
    """Operations that are not views, and what they write, in N×N float32 matrices."""
    as_device()
    n, written = 512, []

    def note(function, _, found):
        returns = [x.alias_info for x in function._schema.returns if x.alias_info is not None]
        if all(alias.is_write for alias in returns) and function.namespace != "prim":
            parts = [part for part in tree_leaves(found) if isinstance(part, torch.Tensor)]
            large = [x.numel() * x.element_size() for x in parts if x.numel() >= n**2]
            written.append(sum(large) / (4 * n**2))

    with FakeTensorMode():
        embeddings, labels = torch.randn(n, 64, requires_grad=True), torch.arange(n) // 4
        with Watch(note):
            VARIANTS[name](check="shapes")(embeddings, labels).backward()
    assert 0 < len(written) <= operations
    assert 0 < sum(written) <= matrices
