"""One loss of several processes is that of one process with all samples."""

import os
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist

import tricouple as tc
from batches import Batch, draw
from processes import farthest, in_processes, messages, shares
from reference import Largest
from tricouple.shaping import Hinge

SIZES = {
    "even": [8, 8],
    "uneven": [9, 3, 4],
    "one row": [1, 6, 5, 4],
    "no rows": [10, 0, 6],
}


def batch(within: bool, n: int = 16, d: int = 6, m: int | None = None) -> Batch:
    """Samples, and references, of which a third more."""
    m = m or n + n // 3
    references = (
        {} if within else {"ref_emb": draw(m, d, seed=1), "ref_labels": torch.arange(m) % 5}
    )
    return Batch(draw(n, d), torch.arange(n) % 5, **references)


def both_ways(make, **settings):
    """Both directions of a loss, called as one of them."""
    both = tc.BothDirections(make(**settings))

    def loss(images, labels, *, ref_emb, temperature=None, **_):
        ratio = None if temperature is None else both.initial * both.initial_sharpness / temperature
        return both(images, ref_emb, labels, sharpness=ratio)

    return loss


SHAPED = {
    "log-sigmoid": partial(tc.NegMMIOT, shaping="log_sigmoid", epsilon=0.5, kernel_tol=1e-10),
    "hinge": partial(tc.NegMMIOT, shaping=Hinge(margin=0.3, slope=0.05), epsilon=0.5),
    "exponential": partial(tc.NegMMIOT, shaping="exponential", epsilon=0.5),
}
LINEAR = {"NegMMIOT": tc.NegMMIOT, "PushPull": tc.PushPull, "IOT": tc.IOT}
linear = pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
couplings = pytest.mark.parametrize("make", (LINEAR | SHAPED).values(), ids=LINEAR | SHAPED)
both_kinds = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])


@both_kinds
@couplings
def test_a_coupling_of_several_processes_is_that_of_one(pools, make, within):
    """Its value, its gradient and that of its temperature, also streamed; more in tests/dense."""
    sizes = SIZES["one row"] if within else SIZES["no rows"]
    mild = 0.2 if make is tc.IOT else 2.0  # c = 5
    memories = ("matrices",) if make is SHAPED["exponential"] else ("matrices", "streamed")
    for memory in memories:
        settings, whole = {"memory": memory, "n_iters": 2}, batch(within)
        assert farthest(pools, make, settings, whole, shares(whole, sizes), mild) < 1e-12


BASELINES = [tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.FusedGromov, tc.SigLIP, tc.VICReg]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    ("make", "within"),  # within one set Fused-Gromov has no meaning
    [(make, within) for make in BASELINES for within in (True, False) if make is not tc.FusedGromov]
    + [(tc.FusedGromov, False), (partial(tc.InfoNCE, partition="joint"), True)],
)
def test_a_baseline_of_several_processes_is_that_of_one(pools, make, within, sizes):
    whole, temperature = batch(within), () if make is tc.VICReg else (0.2,)
    assert farthest(pools, make, {}, whole, shares(whole, sizes), *temperature) < 1e-12


@pytest.mark.parametrize("sizes", [[9, 9], [10, 0, 8]], ids=str)
@pytest.mark.parametrize(
    ("settings", "temperature"), [({}, 0.5), ({"memory": "streamed"}, 0.5), ({"n_iters": 3}, 2e-3)]
)
def test_both_ways_over_several_processes_are_those_of_one(pools, sizes, settings, temperature):
    whole, make = batch(False, 18, m=18), partial(both_ways, tc.NegMMIOT)
    error = farthest(pools, make, settings, whole, shares(whole, sizes), temperature)
    assert error < (1e-12 if temperature > 0.1 else 1e-9)


@both_kinds
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_in_single_precision_too(pools, make, within):
    whole = batch(within, 96).to(torch.float32)
    parts = shares(whole, [40, 25, 31])
    assert farthest(pools, make, {"sharpness": 10.0}, whole, parts) < 1e-5


@both_kinds
@linear
def test_processes_stop_after_the_same_sweep(pools, make, within):
    whole = batch(within)
    for sharpness, limit in ((10.0, 1e-12), (300.0, 1e-10)):
        settings = {"sharpness": sharpness, "n_iters": 100, "tol": 1e-2}
        assert farthest(pools, make, settings, whole, shares(whole, [9, 7])) < limit


# From so many samples on each process has kernels of its own rows.
LARGE = {"NegMMIOT": 1040, "PushPull": 1040, "IOT": 1040, "log-sigmoid": 264, "hinge": 264}


@both_kinds
@pytest.mark.parametrize("name", [*LARGE, "InfoNCE"])
def test_batches_whose_kernels_are_shared(pools, name, within):
    make = tc.InfoNCE if name == "InfoNCE" else (LINEAR | SHAPED)[name]
    n = LARGE.get(name, 1040)
    sizes = (n // 2 - 31, 0, n - n // 2 + 31) if name == "NegMMIOT" else (n // 2 - 31, n // 2 + 31)
    whole = replace(batch(within, n), labels=torch.arange(n) // 3)
    if not within:
        whole = replace(whole, ref_labels=torch.arange(len(whole.ref_emb)) // 3)
    settings = {} if name == "InfoNCE" else {"n_iters": 2}
    assert farthest(pools, make, settings, whole, shares(whole, sizes)) < 1e-12


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
def test_a_shared_batch_with_an_outlier_that_is_sharp(pools, make):
    rows = draw(1040, 6)
    tight = rows[:1] + 0.03 * rows
    tight[5] = -tight[0]
    whole = Batch(tight, torch.arange(1040) // 3)
    settings = {"sharpness": 60.0} | ({} if make is tc.InfoNCE else {"n_iters": 3})
    assert farthest(pools, make, settings, whole, shares(whole, (500, 540))) < 1e-11


def waited(rank):
    """Processor time of a loss that the other process calls late."""
    criterion, found = tc.InfoNCE(group="world"), []
    for seconds in (0.0, 0.3):
        time.sleep(seconds * rank)
        before = time.process_time()
        batch(True).loss(criterion)
        found.append(time.process_time() - before)
    return found[1]


def test_a_process_sleeps_when_the_others_are_late(pools):
    assert max(pools(2).run(waited)) < 0.15


def counted(rank, make, settings, parts):
    """Sizes of the messages, forward and backward."""
    there = parts[rank].to(torch.float64)
    with messages() as forward:
        value = there.loss(make(**settings, group="world"))
    with messages() as backward:
        value.backward()
    return forward, backward


# Messages per sweep of value and gradient, at most: sums of vectors.
PER_SWEEP = {"NegMMIOT": 4, "PushPull": 4, "IOT": 2, "log-sigmoid": 7, "hinge": 7}


@both_kinds
@pytest.mark.parametrize("name", PER_SWEEP)
def test_a_sweep_takes_a_few_messages_of_n_numbers(pools, name, within):
    """Embeddings are sent once, gradients once, and the backward pass sends nothing."""
    n, d, found = 60, 64, {}
    parts = shares(batch(within, n, d), [30, 30])
    for sweeps in (2, 4):
        make = (LINEAR | SHAPED)[name]
        found[sweeps] = pools(2).run(counted, make, {"n_iters": sweeps}, parts)[0]
    forward, backward = found[4]
    assert backward == []
    assert len(forward) - len(found[2][0]) <= 2 * PER_SWEEP[name]
    assert len(forward) - 4 * PER_SWEEP[name] <= 12
    assert sum(size >= n * d // 2 for size in forward) <= (2 if within else 3)


@pytest.mark.parametrize(
    ("make", "within", "sets"),
    [
        (tc.InfoNCE, True, 1),
        (partial(both_ways, tc.NegMMIOT, temperature=0.5, n_iters=2), False, 2),
    ],
    ids=["InfoNCE", "both directions"],
)
def test_each_set_is_gathered_once_and_nothing_is_sent_backwards(pools, make, within, sets):
    n, d = 32, 64
    parts = shares(batch(within, n, d, m=n), [16, 16])
    forward, backward = pools(2).run(counted, make, {}, parts)[0]
    assert forward.count(n * d // 2) == sets
    assert backward == []
    assert len(forward) <= 8 or make is not tc.InfoNCE


def largest(rank, make, parts):
    criterion = make(**({} if make is tc.InfoNCE else {"n_iters": 1}), group="world")
    with Largest() as found:
        parts[rank].to(torch.float32).loss(criterion).backward()
    return found.entries


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
def test_a_process_holds_the_rows_of_its_own_anchors(pools, make):
    n, ranks = 800, 4
    for entries in pools(ranks).run(largest, make, shares(batch(True, n), [n // ranks] * ranks)):
        assert entries <= 2 * n * n / ranks  # with those of a tile of the gradient


# What is wrong on rank 1 alone, and what all processes say.
WRONG = {
    "NaN": (
        lambda rows: {"embeddings": rows * torch.nan},
        "rank 1 of 3: embeddings must be finite, found NaN or infinity in row 0",
    ),
    "zero vector": (
        lambda rows: {"embeddings": torch.cat([rows[:2], torch.zeros(2, 3)])},
        "rank 1 of 3: embeddings must not hold zero vectors, row 2 has no direction",
    ),
    "dimensions": (
        lambda rows: {"embeddings": rows[:, :2]},
        "embeddings.shape[1] is 3 on rank 0, 2 on rank 1",
    ),
    "dtype": (
        lambda rows: {"embeddings": rows.double()},
        "embeddings.dtype is float32 on rank 0, float64 on rank 1",
    ),
    "no gradient": (
        lambda rows: {"embeddings": rows.detach()},
        "embeddings.requires_grad is yes on rank 0, no on rank 1",
    ),
    "no labels": (lambda _: {"labels": None}, "labels is given on rank 0, missing on rank 1"),
    "a label too few": (
        lambda _: {"labels": torch.arange(3)},
        "rank 1 of 3: labels must hold one label per sample, shape (4,), got (3,)",
    ),
    "not a tensor": (
        lambda _: {"embeddings": [[1.0]]},
        "rank 1 of 3: embeddings must be a torch.Tensor, got list",
    ),
    "temperature": (
        lambda _: {"temperature": -1.0},
        "rank 1 of 3: temperature must be finite and > 0, got -1.0",
    ),
    "no references": (
        lambda _: {"ref_emb": None, "ref_labels": None},
        "ref_emb.shape[1] is 3 on rank 0, none on rank 1",
    ),
    "indices": (
        lambda _: {"labels": None, "indices_tuple": ([0], [1], [2])},
        "labels is given on rank 0, missing on rank 1",
    ),
}


def refusal(rank, kind):
    """What a process says of a call that is bad on rank 1 alone."""
    rows = draw(4, 3, seed=rank).float().requires_grad_()
    arguments = {"embeddings": rows, "labels": torch.arange(4)}
    if kind == "no references":
        arguments |= {"ref_emb": torch.randn(5, 3), "ref_labels": torch.arange(5)}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        tc.NegMMIOT(group="world")(**arguments | (WRONG[kind][0](rows) if rank == 1 else {}))
    return str(error.value)


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_on_one_process_is_said_by_all(pools, kind):
    (said,) = set(pools(3).run(refusal, kind))
    assert WRONG[kind][1] in said


def numbered(rank):
    rows = torch.zeros((3, 0, 2)[rank], 4)
    return tc.pair_views(rows, rows, group="world")[1].tolist()


def misshapen(rank):
    try:
        tc.pair_views(torch.zeros(2, 3), torch.zeros(2 + rank // 2, 3), group="world")
    except ValueError as error:
        return str(error)
    return None


def test_instances_are_numbered_over_all_processes(pools):
    assert pools(3).run(numbered) == [[0, 1, 2, 0, 1, 2], [], [3, 4, 3, 4]]
    (message,) = set(pools(3).run(misshapen))
    assert "rank 2 of 3: view 1 has shape (3, 3), view 0 (2, 3)" in message


@both_kinds
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
@pytest.mark.parametrize("four", [False, True], ids=["triplets", "pairs"])
def test_each_process_lists_triplets_of_its_own_samples(pools, make, four, within):
    rows, more = draw(16, 6).split([9, 7]), draw(23, 6, seed=1).split([13, 10])
    (a, p, n), second = torch.tensor([[0, 3, 5], [1, 4, 6], [2, 0, 3]]), 9 if within else 13
    own, starts = ((a, p, a, n), (9, second) * 2) if four else ((a, p, n), (9, second, second))
    parts = [
        Batch(z, ref_emb=None if within else others, triplets=own)
        for z, others in zip(rows, more, strict=True)
    ]
    pairs = zip(own, starts, strict=True)
    listed = tuple(torch.cat([index, index + start]) for index, start in pairs)
    whole = Batch(torch.cat(rows), ref_emb=None if within else torch.cat(more), triplets=listed)
    assert farthest(pools, make, {}, whole, parts) < 1e-12


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.InfoNCE])
def test_anchors_are_found_among_the_references_of_their_process(pools, make):
    labels, parts = torch.arange(13) % 5, []
    for rank, (n, m) in enumerate(((9, 13), (7, 8))):
        references = draw(m, 6, seed=rank)
        anchors = references.flip(0)[:n] + draw(n, 6, seed=2 + rank)
        parts.append(Batch(anchors, labels[:m].flip(0)[:n], references, labels[:m]))
        parts[rank] = replace(parts[rank], own=m - 1 - torch.arange(n))
    joined = zip(*((p.embeddings, p.labels, p.ref_emb, p.ref_labels) for p in parts), strict=True)
    whole = Batch(
        *(torch.cat(both) for both in joined), torch.cat([parts[0].own, 13 + parts[1].own])
    )
    assert farthest(pools, make, {}, whole, parts) < 1e-13


def in_parts(rank):
    """Values of several kinds of groups, and of none."""
    from torch.distributed.device_mesh import init_device_mesh

    rows, labels = batch(True).embeddings, batch(True).labels
    own = [rows[4 * rank :][:4], labels[4 * rank :][:4]]
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    half = slice(8 * (rank // 2), 8 * (rank // 2) + 8)
    wanted = float(tc.InfoNCE()(rows[half], labels[half]))
    groups = [pairs[rank // 2], mesh["inner"]]
    found = [float(tc.InfoNCE(group=group)(*own)) for group in groups]
    errors = []
    for group in (mesh, pairs[1 - rank // 2], "everybody"):
        with pytest.raises(ValueError, match="group") as error:
            tc.InfoNCE(group=group)(*own)
        errors.append(str(error.value))
    return wanted, found, errors


def test_groups_may_be_parts_of_the_world(pools):
    for wanted, found, errors in pools(4).run(in_parts):
        assert found == pytest.approx([wanted] * 2, rel=1e-14)
        assert "DeviceMesh of one dimension, got 2" in errors[0]
        assert 'group must be None, "world"' in errors[2]


def test_a_process_alone_is_a_group_of_its_own():
    assert batch(True).loss(tc.NegMMIOT(group="world")) == batch(True).loss(tc.NegMMIOT())


def asked(rank, parts):
    """Diagnostics of one process, which the others do not wait for."""
    criterion = tc.NegMMIOT(group="world")
    parts[rank].loss(criterion)
    return criterion.diagnostics() if rank == 1 else None


def test_one_process_may_ask_for_diagnostics_of_all_samples(pools):
    criterion = tc.NegMMIOT()
    batch(True).loss(criterion)
    found = pools(2).run(asked, shares(batch(True), [9, 7]))[1]
    assert found == pytest.approx(criterion.diagnostics())


def left_alone(rank):
    """What a process is told that waits for one that is gone."""
    meeting = dist.distributed_c10d._get_default_store()
    samples = torch.randn(4, 3, requires_grad=True), torch.arange(4) % 2
    if rank == 1:
        meeting.wait(["the other has come so far"])
        os._exit(0)
    meeting.set("the other has come so far", "")
    with pytest.raises(RuntimeError) as error:
        tc.NegMMIOT(group="world")(*samples)
    return str(error.value)


def test_a_process_that_dies_is_not_waited_for(tmp_path):
    (message,) = in_processes(2, tmp_path, left_alone, expected=[0])
    assert "timed out" not in message.lower()  # the connection was lost, not patience
