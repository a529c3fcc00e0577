"""``cached``: the loss and the gradient of a batch in the memory of a chunk."""

import copy
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import tricouple as tc
from batches import draw
from processes import in_processes
from reference import Watch

LOSSES = {name: getattr(tc, name) for name in ("NegMMIOT", "PushPull", "InfoNCE")}


def network(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), *extra, nn.Tanh(), nn.Linear(12, 4)).double()


def gradient(loss: Tensor, *modules: nn.Module) -> Tensor:
    """The gradient by all parameters that have one, after a backward pass."""
    for module in modules:
        module.zero_grad()
    loss.backward()
    slopes = [p.grad for module in modules for p in module.parameters()]
    return torch.cat([slope.flatten().clone() for slope in slopes if slope is not None])


def assert_same(found: Tensor, wanted: Tensor, tolerance: float = 1e-12) -> None:
    assert wanted.norm() > 0
    assert (found - wanted).norm() <= tolerance * wanted.norm()


X, LABELS = draw(50, 6), torch.arange(50) % 7

# Value, gradient and memory ----------------------------------------------------------------------


class Activations:
    """Bytes of the outputs of layers that are alive, and the most there were."""

    def __init__(self, net: nn.Sequential) -> None:
        self.alive = self.most = 0
        for layer in net:
            layer.register_forward_hook(self._count)

    def _count(self, _module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        storage = output.untyped_storage()
        weakref.finalize(storage, self._forget, storage.nbytes())
        self.alive += storage.nbytes()
        self.most = max(self.most, self.alive)

    def _forget(self, size: int) -> None:
        self.alive -= size


@pytest.mark.parametrize(("name", "n"), [("InfoNCE", 4096), ("NegMMIOT", 1024), ("PushPull", 1024)])
def test_a_large_batch_has_its_gradient_in_the_memory_of_a_chunk(name, n):
    """Float32; the reference is the whole batch at once."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 16))
    images, labels = draw(n, 3, 16, 16).float(), torch.arange(n) % 100
    wanted = LOSSES[name]()(net(images), labels)
    slope = gradient(wanted, net)
    activations = Activations(net)
    net(images[:256]).sum().backward()
    of_a_chunk, activations.most, saved = activations.most, 0, {}

    def kept(value: Tensor) -> Tensor:
        saved[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda value: value):
        loss = tc.cached(LOSSES[name](), chunk_size=256)(net, images, labels)
    assert sum(saved.values()) + activations.alive < of_a_chunk  # between the two passes
    assert_same(gradient(loss, net), slope, 1e-5)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=0)
    assert activations.most < 1.3 * of_a_chunk  # with the embeddings of all
    assert activations.alive == 0


@pytest.mark.parametrize("size", [1, 7, 50, 64])
@pytest.mark.parametrize("name", LOSSES)
def test_chunks_of_every_size_give_the_gradient_of_the_batch(name, size):
    net = network()
    loss = tc.cached(LOSSES[name](), size)(net, X, LABELS)
    assert_same(gradient(loss, net), gradient(LOSSES[name]()(net(X), LABELS), net))


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_two_encoders_compare_their_embeddings(both, shared):
    f = network()
    g = f if shared else network(nn.Linear(12, 12))
    y, weights = X.roll(3, 1), torch.rand(50)
    criterion = tc.BothDirections(tc.InfoNCE(), learn=True) if both else tc.NegMMIOT()
    if both:
        direct = criterion(f(X), g(y), LABELS, weights=weights)
    else:
        direct = criterion(f(X), LABELS, ref_emb=g(y), ref_labels=LABELS, weights=weights)
    wanted = gradient(direct, f, g, criterion)
    loss = tc.cached(criterion, 8)((f, g), (X, y), LABELS, weights=weights)
    assert_same(gradient(loss, f, g, criterion), wanted)


class Tokens(nn.Module):
    """An encoder of a dictionary, with a method."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, batch: dict) -> Tensor:
        assert batch["scale"] == 2.0
        return self.net(batch["scale"] * batch["ids"][0]) * batch["mask"]

    def encode(self, texts: list[str]) -> Tensor:
        return self.net(torch.stack([X[int(text)] for text in texts]))


def test_encoders_are_modules_methods_or_functions_of_tensors_dicts_and_texts():
    model, criterion, mask = Tokens(), tc.InfoNCE(), torch.rand(50, 1).double()
    step, texts = tc.cached(criterion, 8), [str(number) for number in range(50)]
    batch = {"ids": (X,), "mask": mask, "scale": 2.0}
    cases = [
        (model, batch, model(batch)),
        (model.encode, texts, model.net(X)),
        (lambda rows: model.net(rows[0] + rows[1]), (X, X), model.net(2 * X)),
    ]
    for encoder, inputs, embeddings in cases:
        wanted = gradient(criterion(embeddings, LABELS), model)
        assert_same(gradient(step(encoder, inputs, LABELS), model), wanted)


# What may differ between the passes --------------------------------------------------------------


def in_chunks(net: nn.Module, size: int, x: Tensor = X) -> Tensor:
    return torch.cat([net(chunk) for chunk in x.split(size)])


def test_dropout_and_batch_normalisation_are_those_of_one_pass():
    """Statistics are of a chunk; running means count every chunk once."""
    net = network(nn.Dropout(0.3), nn.BatchNorm1d(12))
    plain = copy.deepcopy(net)
    torch.manual_seed(1)
    wanted = gradient(tc.PushPull()(in_chunks(plain, 8), LABELS), plain)
    torch.manual_seed(1)
    loss = tc.cached(tc.PushPull(), 8)(net, X, LABELS)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert_same(gradient(loss, net), wanted)
    assert torch.equal(torch.get_rng_state(), before)
    for found, buffer in zip(net.buffers(), plain.buffers(), strict=True):
        assert torch.equal(found, buffer)


def test_two_steps_before_one_backward_keep_their_gradients():
    net, step = network(), tc.cached(tc.InfoNCE(), 8)
    wanted = gradient(tc.InfoNCE()(net(X), LABELS) + 2 * tc.InfoNCE()(net(-X), LABELS), net)
    assert_same(gradient(step(net, X, LABELS) + 2 * step(net, -X, LABELS), net), wanted)


def test_a_learnt_temperature_and_hooks_receive_the_scaled_gradient_once():
    net, tau = network(), nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    criterion = tc.InfoNCE(tau)
    net[0].weight.register_hook(lambda slope: 2 * slope)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimiser = torch.optim.SGD([*net.parameters(), tau], lr=0.1)
    wanted = gradient(criterion(net(X), LABELS), net, criterion)
    optimiser.zero_grad()
    scaler.scale(tc.cached(criterion, 8)(net, X, LABELS)).backward()
    assert tau.grad is not None
    scaler.unscale_(optimiser)
    found = [p.grad.flatten() for p in (*net.parameters(), tau)]
    assert_same(torch.cat(found), wanted)
    loss = tc.cached(tc.InfoNCE(), 8)(net, X, LABELS, temperature=tau)
    wanted = torch.autograd.grad(tc.InfoNCE()(net(X), LABELS, temperature=tau), tau)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, tau)[0], wanted)


def test_autocast_is_entered_again():
    net = network().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        direct = tc.NegMMIOT()(in_chunks(net, 8, X.float()), LABELS)
        loss = tc.cached(tc.NegMMIOT(), 8)(net, X.float(), LABELS)
    assert_same(gradient(loss, net), gradient(direct, net), 1e-6)


def test_nothing_is_embedded_twice_without_a_gradient():
    f, g, calls = network(), network().requires_grad_(False), []
    step = tc.cached(tc.NegMMIOT(), 10)
    for net in (f, g):
        net.register_forward_pre_hook(lambda module, _: calls.append(module))
    gradient(step((f, g), (X, X.flip(1)), LABELS), f)
    assert all(p.grad is None for p in g.parameters())
    assert (calls.count(f), calls.count(g)) == (10, 5)
    with torch.no_grad():
        torch.testing.assert_close(step(f, X, LABELS), tc.NegMMIOT()(f(X), LABELS))
    assert calls.count(f) == 16


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_parameters_and_inputs_may_be_set_up_in_the_first_pass():
    net = nn.Sequential(nn.ReLU(inplace=True), nn.LazyLinear(4)).double()
    slope = gradient(tc.cached(tc.InfoNCE(), 8)(net, X.clone(), LABELS), net)
    assert_same(slope, gradient(tc.InfoNCE()(net(X.clone()), LABELS), net))


class Moody(nn.Module):
    """Draws its noise with numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.draws = network(), np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + torch.from_numpy(self.draws.normal(size=x.shape)))


def changed(how: str) -> None:
    net, x = Moody() if how == "numpy" else network(nn.Dropout(0.1)), X.clone()
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-9)
    loss = tc.cached(tc.InfoNCE(), 8)(net, x, LABELS)
    if how == "optimiser":
        gradient(tc.InfoNCE()(net(x), LABELS), net)
        optimiser.step()
    elif how == "mode":
        net.eval()
    elif how == "data":
        net[0].weight.data.mul_(2)
    elif how == "inputs":
        x[3] += 1
    loss.backward()


@pytest.mark.parametrize("how", ["optimiser", "mode", "data", "inputs", "numpy"])
def test_an_encoder_that_changes_between_the_passes_is_refused(how):
    with pytest.raises(ValueError, match="have changed since the step"):
        changed(how)


def test_bad_input_is_refused():
    net, step = network(), tc.cached(tc.InfoNCE(), 8)
    for size, error in ((0, ValueError), (-3, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="chunk_size must be"):
            tc.cached(tc.InfoNCE(), size)
    with pytest.raises(TypeError, match="criterion must be a loss"):
        tc.cached(torch.cdist, 8)
    with pytest.raises(ValueError, match="2 encoders need as many inputs, got 1"):
        step((net, net), (X,), LABELS)
    with pytest.raises(ValueError, match="one row per sample"):
        step(net, (X, X[:3]), LABELS)
    with pytest.raises(TypeError, match="encoder must return embeddings"):
        step(lambda x: {"embedding": net(x)}, X, LABELS)
    with pytest.raises(TypeError, match="encoder must be a module"):
        step("net", X, LABELS)


# Several processes -------------------------------------------------------------------------------


class Holder(nn.Module):
    """A module that takes a step itself, as Lightning's do inside of DistributedDataParallel."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *batch: Tensor) -> Tensor:
        return tc.cached(tc.NegMMIOT(group="world"), 7)(self.net, *batch)


SHARES = slice(0, 30), slice(30, 50)  # five chunks and three


def reduced(rank: int, kind: str) -> tuple[Tensor, int]:
    """The gradient of two steps, and how many times one of them reduced gradients."""
    net, batch, buckets = network(nn.Linear(12, 12)), (X[SHARES[rank]], LABELS[SHARES[rank]]), []
    if kind == "sharded":
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        found: Counter[str] = Counter()
        with Watch(lambda function, *_: found.update([str(function)])):
            Holder(net)(*batch).backward()
        net.zero_grad()
        Holder(net)(*batch).backward()
        slopes = [p.grad.full_tensor().flatten() for p in net.parameters()]
        return torch.cat(slopes), found["c10d._reduce_scatter_base_.default"]
    options = {"static_graph": kind == "static", "find_unused_parameters": kind == "unused"}
    wrapped = DistributedDataParallel(Holder(net) if kind == "outside" else net, **options)
    wrapped.register_comm_hook(
        None, lambda _, bucket: [buckets.append(1), allreduce_hook(None, bucket)][1]
    )
    for _ in range(2):
        found = gradient((wrapped if kind == "outside" else Holder(wrapped))(*batch), net)
    return found, len(buckets) // 2


@pytest.mark.parametrize("kind", ["plain", "static", "unused", "outside", "sharded"])
@pytest.mark.filterwarnings("ignore")  # of find_unused_parameters and of gloo
def test_processes_reduce_the_gradient_of_the_whole_batch_once(kind, tmp_path):
    net = network(nn.Linear(12, 12))
    wanted = gradient(tc.NegMMIOT()(net(X), LABELS), net)
    for found, messages in in_processes(2, tmp_path, lambda rank: reduced(rank, kind)):
        assert_same(found, wanted, 1e-10)
        assert messages == 1
