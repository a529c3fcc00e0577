"""Claims that hold for every batch, device and process, each of which has once been wrong."""

import threading
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import tricouple as tc
from batches import DENSE, Batch, assert_right, batch, draw, listed, scales, with_gradient
from conftest import UNCONVERGED, VARIANTS
from processes import python
from tricouple.shaping import Hinge


def assert_agrees(name, there, c, dtype=torch.float64, least=0.0, threads=1, **options):
    """Value and gradient are those of the dense reference."""
    wide = there.to(torch.float64)
    wanted = with_gradient(wide.dense(DENSE[name], **options), wide.leaves)
    narrow = there.to(dtype)
    torch.set_num_threads(threads)
    found = with_gradient(narrow.loss(getattr(tc, name)(**options)), narrow.leaves)
    torch.set_num_threads(1)
    assert_right(found, wanted, c, len(there.embeddings), dtype, (least, least))


# --- batches --------------------------------------------------------------------------------------

TIES = {
    "rank one": lambda n, seed: draw(n, 1, seed=seed) * draw(1, 4, seed=seed + 99),
    "duplicates": lambda n, seed: draw(n, 4, seed=seed)[torch.arange(n) // 3],
    "integers": lambda n, seed: draw(n, 3, seed=seed).round() + torch.tensor([0.0, 0.0, 3.0]),
    "collapsed": lambda n, seed: torch.ones(n, 4, dtype=torch.float64),
}


@pytest.mark.parametrize("margin", [0.0, 1e-300])
@pytest.mark.parametrize("kind", TIES)
def test_a_hinge_without_margin_counts_ties_as_they_are(kind, margin):
    for seed in range(6):
        labels = torch.randint(0, 4, (32,), generator=torch.Generator().manual_seed(seed))
        there = Batch(TIES[kind](32, seed), labels)
        options = {"temperature": 0.2, "epsilon": 0.1, "shaping": Hinge(margin)}
        wanted = float(there.dense(DENSE["NegMMIOT"], **options))
        assert float(there.loss(tc.NegMMIOT(**options))) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [16, 24])
def test_sharp_log_sigmoids_have_gradients(n, dtype):
    for seed in range(10, 22):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, n // 2, (n,), generator=generator)
        centres = torch.randn(n, 8, generator=generator)
        z = centres[labels] + 0.1 * torch.randn(n, 8, generator=generator)
        options = {"temperature": 0.01, "epsilon": 1.0, "shaping": "log_sigmoid"}
        # The quadrature's tolerance is a thousandth.
        assert_agrees(
            "NegMMIOT", Batch(z.double(), labels), 100.0, dtype, 1e-2, **options, marginals="target"
        )


@pytest.mark.parametrize("inverse", [85, 90, 95, 99, 105])
def test_log_sigmoid_costs_of_pairs_do_not_overflow_in_float32(inverse):
    options = {"temperature": 1 / inverse, "epsilon_pos": 1.0, "epsilon_neg": 1.0}
    assert_agrees(
        "PushPull",
        batch("two clusters", 66),
        inverse,
        torch.float32,
        **options,
        shaping="log_sigmoid",
    )


@pytest.mark.parametrize("inverse", [44, 46, 47, 48, 49, 52])
def test_log_sigmoid_costs_of_listed_triplets_do_not_overflow_in_float32(inverse):
    there = Batch(batch("two clusters", 66).embeddings, None, triplets=listed(66, 3).triplets)
    options = {"temperature": 1 / inverse, "epsilon": 1.0, "n_iters": 2}
    settings = options | {"shaping": "log_sigmoid"}
    assert_agrees("NegMMIOT", there, inverse, torch.float32, 1e-2, **settings)


@pytest.mark.parametrize("inverse", [100, 1000, 10000])
def test_a_collapsed_batch_says_nothing_about_a_shaping(inverse):
    there = Batch(torch.ones(72, 8, dtype=torch.float64), torch.arange(72) % 5)
    options = {"temperature": 1 / inverse, "epsilon_pos": 0.1, "epsilon_neg": 0.1}
    for dtype in (torch.float64, torch.float32):
        assert_agrees("PushPull", there, 10.0 * inverse, dtype, **options, shaping="log_sigmoid")


@pytest.mark.parametrize("threads", [1, 2], ids=["one thread", "two threads"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("marginals", ["target", "classes"])
@pytest.mark.parametrize("n", [3, 12, 41])
def test_one_positive_pair_is_enough_for_a_gradient(n, marginals, dtype, threads):
    labels = torch.cat([torch.zeros(2, dtype=torch.long), torch.arange(1, n - 1)])
    options = scales("NegMMIOT", 10.0) | {"marginals": marginals}
    for seed in range(4):
        there = Batch(draw(n, 4, seed=seed), labels)
        assert_agrees("NegMMIOT", there, 10.0, dtype, threads=threads, **options)


# --- calls ----------------------------------------------------------------------------------------


@UNCONVERGED
@pytest.mark.parametrize("name", [*VARIANTS, "both directions", "learnt temperature"])
def test_losses_work_inside_activation_checkpoints(name):
    labels = torch.arange(12) // 2
    tau = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    if name in VARIANTS:
        across = {"ref_emb": draw(12, 4, seed=1), "ref_labels": labels}
        criterion = partial(VARIANTS[name](), **across if name == "FusedGromov" else {})
    elif name == "learnt temperature":
        criterion = partial(tc.NegMMIOT(), temperature=tau)
    else:

        def criterion(x, labels):
            return tc.BothDirections(tc.NegMMIOT())(x, x.flip(1), labels)

    z = draw(12, 4).requires_grad_()
    learnt = [z, tau] if name == "learnt temperature" else [z]

    def step(x):
        return criterion(torch.tanh(x), labels)

    wanted = torch.autograd.grad(step(z), learnt)
    checkpoint(step, z, use_reentrant=False).backward()
    torch.testing.assert_close([leaf.grad for leaf in learnt], list(wanted))


def test_diagnostics_are_those_of_the_loss_that_is_asked():
    z, labels = draw(12, 4), torch.arange(12) // 2
    watched, others = tc.NegMMIOT(n_iters=7), [tc.IOT(n_iters=3), tc.PushPull(n_iters=4)]
    watched(z, labels)
    wanted = watched.diagnostics()
    ended = threading.Event()

    def compute(criterion):
        while not ended.is_set():
            criterion(z, labels)

    threads = [threading.Thread(target=compute, args=[criterion]) for criterion in others]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert watched.diagnostics() == wanted
    finally:
        ended.set()
        for thread in threads:
            thread.join()


EXPORTED = """
import sys, torch, tricouple as tc

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = tc.NegMMIOT()

    def forward(self, z, labels):
        return self.criterion(z, labels)

arguments = torch.randn(8, 4), torch.arange(8) // 2
torch.export.save(torch.export.export(Model(), arguments), sys.argv[1])
"""
LOADED = """
import sys, torch, tricouple as tc

others = [tc.InfoNCE(sharpness=3) for _ in range(8)]
program = torch.export.load(sys.argv[1]).module()
try:
    print("computed", float(program(torch.randn(8, 4), torch.arange(8) // 2)))
except (RuntimeError, ValueError) as error:
    print("raised", error)
"""


@pytest.mark.slow
def test_an_exported_program_does_not_take_another_loss_for_its_own(tmp_path):
    python("-c", EXPORTED, tmp_path / "program.pt2")
    found = python("-c", LOADED, tmp_path / "program.pt2")
    assert found.stdout.startswith("raised"), found.stdout + found.stderr


# --- processes ------------------------------------------------------------------------------------

DIFFERENT = {  # of the loss on rank 0 and on rank 1; words of which the error has one
    "sharpness": ({"sharpness": 10}, {"sharpness": 50}, ["sharpness", "temperature"]),
    "epsilon": ({"epsilon": 0.1}, {"epsilon": 0.2}, ["epsilon"]),
    "n_iters": ({"n_iters": 10}, {"n_iters": 11}, ["n_iters"]),
    "tol": ({"tol": 1e-3}, {"tol": None}, ["tol"]),
    "marginals": ({"marginals": "target"}, {"marginals": "uniform"}, ["marginals"]),
    "shaping": ({"shaping": "hinge"}, {"shaping": "linear"}, ["shaping"]),
    "margin": ({"shaping": Hinge(0.1)}, {"shaping": Hinge(0.2)}, ["shaping"]),
    "gradient": ({"gradient": "envelope"}, {"gradient": "unrolled"}, ["gradient"]),
    "empty": ({"empty": "zero"}, {"empty": "raise"}, ["empty"]),
    "check": ({"check": "full"}, {"check": "shapes"}, ["check"]),
    "negatives": (
        {"make": tc.PushPull, "negatives": "all"},
        {"make": tc.PushPull, "negatives": "projected"},
        ["negatives"],
    ),
    "learnt temperature": (
        {"temperature": torch.nn.Parameter(torch.tensor(1.0)), "epsilon": 0.1},
        {"temperature": torch.nn.Parameter(torch.tensor(2.0)), "epsilon": 0.1},
        ["sharpness", "temperature"],
    ),
    "temperature of a call": ({"call": 1.0}, {"call": 2.0}, ["sharpness", "temperature"]),
    "two plans or one": ({"make": tc.PushPull}, {"make": tc.IOT}, ["PushPull", "IOT"]),
    "a plan or none": ({"make": tc.NegMMIOT}, {"make": tc.InfoNCE}, ["NegMMIOT", "InfoNCE"]),
}


def refusal(rank, kind):
    """What a process says of a loss that is not that of the others."""
    settings = dict(DIFFERENT[kind][rank])
    make, temperature = settings.pop("make", tc.NegMMIOT), settings.pop("call", None)
    group = dist.new_group(timeout=timedelta(seconds=10))  # no call waits so long
    z, labels = draw(6, 4, seed=rank).requires_grad_(), torch.arange(6) // 2
    try:
        make(**settings, group=group)(z, labels, temperature=temperature)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", "computed"


@pytest.mark.parametrize("kind", DIFFERENT)
def test_all_processes_refuse_losses_that_differ(pools, kind):
    (said,) = set(pools(2).run(refusal, kind))
    assert said[0] == "ValueError", said
    assert any(word in said[1] for word in DIFFERENT[kind][2]), said
    assert "on rank 0" in said[1]
    assert "on rank 1" in said[1]
