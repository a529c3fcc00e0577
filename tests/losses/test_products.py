"""A call multiplies the embeddings with each other once, and ∂L/∂s with them at most twice."""

import pytest
import torch

import tricouple as tc
from conftest import COUPLED, OTHERS
from reference import Watch
from tricouple import numeric

N, D = 96, 37  # no number of factors of a gradient is 37
LOSSES = (
    COUPLED
    | OTHERS
    | {
        "two epsilons": lambda: tc.PushPull(1.0, 0.1, 0.2),
        "shaped": lambda: tc.PushPull(shaping="log_sigmoid", n_iters=2),
        "uniformity": lambda: tc.IOT(uniformity=0.2, n_iters=2),
    }
)
del LOSSES["fused_gromov"]  # which multiplies more
FAST = ("neg_mmiot", "push_pull", "two epsilons", "iot", "info_nce")


def counted(step):
    """Products of N×d×M: similarities, (N, M), and gradients, (N, d)."""
    numbers = {D: 0, N: 0}  # by what is summed over

    def note(function, args, _):
        if function.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            left, right = [x for x in args if isinstance(x, torch.Tensor)][-2:]
            if left.shape[0] * left.shape[1] * right.shape[1] == N * D * N:
                numbers[left.shape[1]] += 1

    with Watch(note):
        step().backward()
    return numbers[D], numbers[N]


def batch():
    generator = torch.Generator().manual_seed(0)
    here, there = torch.randn(2, N, D, generator=generator)
    return here.requires_grad_(), there.requires_grad_(), torch.arange(N) // 4


@pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("way", ["one set", "two sets", "both directions"])
@pytest.mark.parametrize("name", LOSSES)
def test_one_similarity_product_and_at_most_two_of_the_gradient(monkeypatch, name, way, device):
    here, there, labels = batch()
    criterion = LOSSES[name]()
    if device:
        monkeypatch.setattr(numeric, "HOST", "none")
    steps = {
        "one set": lambda: criterion(here, labels),
        "two sets": lambda: criterion(here, labels, ref_emb=there, ref_labels=labels),
        "both directions": lambda: tc.BothDirections(criterion)(here, there, labels),
    }
    similarities, gradients = counted(steps[way])
    assert similarities == 1
    assert 1 <= gradients <= 2


@pytest.mark.parametrize("name", FAST)
def test_both_directions_are_one_call_inside_an_operator(name):
    here, there, labels = batch()
    criterion = tc.BothDirections(LOSSES[name]())

    def step(here, there):
        return criterion(here, there, labels)

    called = []

    def backend(graph, _):
        called.extend(node for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    value = torch.compile(step, backend=backend, fullgraph=True)(here, there)
    torch.testing.assert_close(value, step(here, there))
    assert [str(node.target) for node in called].count("tricouple.loss") == 1
    value = torch.func.grad(step, argnums=1)(here, there)
    torch.testing.assert_close(value, torch.autograd.grad(step(here, there), there)[0])
