"""One loss of several processes is that of one process with all samples."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

import tricouple as tc
from processes import in_processes, messages
from reference import Largest
from tricouple.shaping import Hinge

SIZES = {
    "even": [8, 8],
    "uneven": [9, 3, 4],
    "one row": [1, 6, 5, 4],
    "no rows": [10, 0, 6],
}


def batch(within: bool, dtype: torch.dtype = torch.float64, n: int = 16, d: int = 6):
    """Embeddings and labels, and those of references, of which a third more."""
    generator = torch.Generator().manual_seed(0)
    numbers = (n,) if within else (n, n + n // 3)
    return [
        (torch.randn(size, d, generator=generator, dtype=dtype), torch.arange(size) % 5)
        for size in numbers
    ]


def shares(samples, sizes):
    """The samples of each process; the last has what the sizes leave over."""
    rest = len(samples[0]) - sum(sizes)
    return list(
        zip(*(part.split([*sizes[:-1], sizes[-1] + rest]) for part in samples), strict=True)
    )


def differentiated(criterion, samples, temperature=None):
    """The value, and the gradients of all embeddings and of the temperature."""
    embeddings = [rows.clone().requires_grad_() for rows, _ in samples]
    arguments = {"labels": samples[0][1]}
    if len(samples) > 1:
        arguments |= {"ref_emb": embeddings[1], "ref_labels": samples[1][1]}
    if temperature is not None:
        temperature = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
        arguments["temperature"] = temperature
    value = criterion(embeddings[0], **arguments)
    wanted = [*embeddings, *([] if temperature is None else [temperature])]
    return value.detach(), torch.autograd.grad(value, wanted)


def together(rank, make, settings, parts, temperature):
    """The same of a process's share."""
    criterion = make(**settings, group="world")
    return differentiated(criterion, [part[rank] for part in parts], temperature)


def compare(pools, make, settings, sizes, within, *, dtype=torch.float64, temperature=None, **more):
    """The largest errors of values and gradients, relative to the largest of each."""
    samples = batch(within, dtype, **more)
    value, gradients = differentiated(make(**settings), samples, temperature)
    parts = [shares(part, sizes) for part in samples]
    answers = pools(len(sizes)).run(together, make, settings, parts, temperature)
    errors = [float(abs(found - value) / abs(value)) for found, _ in answers]
    for k, wanted in enumerate(gradients):
        parts = [gradient[k] for _, gradient in answers]
        found = torch.cat(parts) / len(sizes) if wanted.ndim else torch.stack(parts)
        errors.append(float((found - wanted).abs().max() / wanted.abs().max()))
    return max(errors)


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
        settings = {"memory": memory, "n_iters": 2}
        assert compare(pools, make, settings, sizes, within, temperature=mild) < 1e-12


BASELINES = [tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.FusedGromov, tc.SigLIP, tc.VICReg]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    ("make", "within"),  # within one set Fused-Gromov has no meaning
    [(make, within) for make in BASELINES for within in (True, False) if make is not tc.FusedGromov]
    + [(tc.FusedGromov, False), (partial(tc.InfoNCE, partition="joint"), True)],
)
def test_a_baseline_of_several_processes_is_that_of_one(pools, make, within, sizes):
    temperature = None if make is tc.VICReg else 0.2
    assert compare(pools, make, {}, sizes, within, temperature=temperature) < 1e-12


@both_kinds
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_in_single_precision_too(pools, make, within):
    sizes, wide = [40, 25, 31], {"dtype": torch.float32, "n": 96}
    assert compare(pools, make, {"sharpness": 10.0}, sizes, within, **wide) < 1e-5


@both_kinds
@linear
def test_processes_stop_after_the_same_sweep(pools, make, within):
    for sharpness, limit in ((10.0, 1e-12), (300.0, 1e-10)):
        settings = {"sharpness": sharpness, "n_iters": 100, "tol": 1e-2}
        assert compare(pools, make, settings, [9, 7], within) < limit


def waited(rank):
    """Processor time of a loss that the other process calls late."""
    rows, labels = batch(True)[0]
    criterion, found = tc.InfoNCE(group="world"), []
    for seconds in (0.0, 0.3):
        time.sleep(seconds * rank)
        before = time.process_time()
        criterion(rows, labels)
        found.append(time.process_time() - before)
    return found[1]


def test_a_process_sleeps_when_the_others_are_late(pools):
    assert max(pools(2).run(waited)) < 0.15


def counted(rank, make, settings, parts):
    """Sizes of the messages, forward and backward."""
    embeddings = [part[rank][0].requires_grad_() for part in parts]
    references = {}
    if len(parts) > 1:
        references = {"ref_emb": embeddings[1], "ref_labels": parts[1][rank][1]}
    with messages() as forward:
        value = make(**settings, group="world")(embeddings[0], parts[0][rank][1], **references)
    with messages() as backward:
        value.backward()
    return forward, backward


# Messages per sweep of value and gradient, at most: sums of vectors.
PER_SWEEP = {"NegMMIOT": 4, "PushPull": 4, "IOT": 2, "log-sigmoid": 7, "hinge": 7}


@both_kinds
@pytest.mark.parametrize("name", PER_SWEEP)
def test_a_sweep_takes_a_few_messages_of_n_numbers(pools, name, within):
    """Embeddings are sent once, gradients once, and the backward pass sends nothing."""
    n, d, sizes = 60, 64, [30, 30]
    samples = batch(within, n=n, d=d)
    found = {}
    for sweeps in (2, 4):
        parts = [shares(part, sizes) for part in samples]
        make = (LINEAR | SHAPED)[name]
        found[sweeps] = pools(2).run(counted, make, {"n_iters": sweeps}, parts)[0]
    forward, backward = found[4]
    assert backward == []
    assert len(forward) - len(found[2][0]) <= 2 * PER_SWEEP[name]
    assert len(forward) - 4 * PER_SWEEP[name] <= 12
    assert sum(size >= n * d // 2 for size in forward) <= len(samples) + 1


def largest(rank, make, parts):
    rows, labels = parts[rank]
    criterion = make(**({} if make is tc.InfoNCE else {"n_iters": 1}), group="world")
    with Largest() as found:
        criterion(rows.requires_grad_(), labels).backward()
    return found.entries


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
def test_a_process_holds_the_rows_of_its_own_anchors(pools, make):
    n, ranks = 800, 4
    parts = shares(batch(True, torch.float32, n=n)[0], [n // ranks] * ranks)
    for entries in pools(ranks).run(largest, make, parts):
        assert entries <= 2 * n * n / ranks  # with those of a tile of the gradient


def test_info_nce_sends_few_messages(pools):
    samples = batch(True, n=60, d=64)
    parts = [shares(part, [30, 30]) for part in samples]
    forward, backward = pools(2).run(counted, tc.InfoNCE, {}, parts)[0]
    assert len(forward) <= 8
    assert backward == []


def refusal(rank, kind, within):
    """What a process says of a call that is bad on rank 1 alone."""
    torch.manual_seed(rank)
    rows, labels = torch.randn(4, 3, requires_grad=True), torch.arange(4)
    bad = rank == 1
    arguments = {"embeddings": rows, "labels": labels}
    if not within:
        arguments |= {"ref_emb": torch.randn(5, 3), "ref_labels": torch.arange(5)}
    changes = {
        "NaN": {"embeddings": rows * torch.nan},
        "zero vector": {"embeddings": torch.cat([rows[:2], torch.zeros(2, 3)])},
        "dimensions": {"embeddings": rows[:, :2]},
        "dtype": {"embeddings": rows.double()},
        "no gradient": {"embeddings": rows.detach()},
        "no labels": {"labels": None},
        "a label too few": {"labels": labels[1:]},
        "not a tensor": {"embeddings": [[1.0]]},
        "temperature": {"temperature": -1.0},
        "no references": {"ref_emb": None, "ref_labels": None},
        "indices": {"labels": None, "indices_tuple": ([0], [1], [2])},
    }
    try:
        tc.NegMMIOT(group="world")(**arguments | (changes[kind] if bad else {}))
    except ValueError as error:
        return str(error)
    return None


KINDS = {
    "NaN": "found NaN or infinity in row 4 (row 0 of rank 1)",
    "zero vector": "row 6 has no direction (row 2 of rank 1)",
    "dimensions": "embeddings.shape[1] is 3 on rank 0, 2 on rank 1",
    "dtype": "embeddings.dtype is float32 on rank 0, float64 on rank 1",
    "no gradient": "embeddings.requires_grad is yes on rank 0, no on rank 1",
    "no labels": "labels is given on rank 0, missing on rank 1",
    "a label too few": "rank 1 of 3: labels must hold one label per sample, shape (4,), got (3,)",
    "not a tensor": "rank 1 of 3: embeddings must be a torch.Tensor, got list",
    "temperature": "rank 1 of 3: temperature must be finite and > 0, got -1.0",
    "no references": "ref_emb.shape[1] is 3 on rank 0, none on rank 1",
    "indices": "labels is given on rank 0, missing on rank 1",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_on_one_process_is_said_by_all(pools, kind):
    answers = pools(3).run(refusal, kind, kind != "no references")
    assert len(set(answers)) == 1
    assert KINDS[kind] in answers[0]


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


def mined(rank, make, four):
    """A loss of triplets or pairs that each process lists of its own samples."""
    ((rows, _),) = batch(True)
    starts, sizes = (0, 9), (9, 7)
    indices = [torch.tensor([0, 3, 5]), torch.tensor([1, 4, 6]), torch.tensor([2, 0, 3])]
    if four:
        indices.insert(2, indices[0])
    listed = tuple(torch.cat([part, part + 9]) for part in indices)
    leaf = rows.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(make()(leaf, indices_tuple=listed), leaf)
    own = slice(starts[rank], starts[rank] + sizes[rank])
    leaf = rows[own].clone().requires_grad_()
    value = make(group="world")(leaf, indices_tuple=tuple(indices))
    (found,) = torch.autograd.grad(value, leaf)
    return float((found / 2 - wanted[own]).abs().max())


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
@pytest.mark.parametrize("four", [False, True], ids=["triplets", "pairs"])
def test_each_process_lists_triplets_of_its_own_samples(pools, make, four):
    assert max(pools(2).run(mined, make, four)) < 1e-13


def among_references(rank, make):
    """A loss of anchors that are their process's first references."""
    (rows, labels), (more, more_labels) = batch(False)
    starts, sizes = (0, 9), (9, 7)
    own = slice(starts[rank], starts[rank] + sizes[rank])
    halves = [
        (torch.cat([rows[of], more[of]]), torch.cat([labels[of], more_labels[of]]))
        for of in (slice(0, 9), slice(9, 16))
    ]
    everything = [torch.cat(parts) for parts in zip(*halves, strict=True)]
    index = torch.cat([torch.arange(9), 18 + torch.arange(7)])
    leaf = rows.clone().requires_grad_()
    references = dict(zip(("ref_emb", "ref_labels"), everything, strict=True))
    value = make()(leaf, labels, **references, ref_index=index)
    (wanted,) = torch.autograd.grad(value, leaf)
    leaf = rows[own].clone().requires_grad_()
    references = dict(zip(("ref_emb", "ref_labels"), halves[rank], strict=True))
    criterion = make(group="world")
    again = criterion(leaf, labels[own], **references, ref_index=torch.arange(sizes[rank]))
    (found,) = torch.autograd.grad(again, leaf)
    return float(abs(again - value).detach()), float((found / 2 - wanted[own]).abs().max())


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.InfoNCE])
def test_anchors_are_found_among_the_references_of_their_process(pools, make):
    assert max(map(max, pools(2).run(among_references, make))) < 1e-13


def in_parts(rank):
    """Values of several kinds of groups, and of none."""
    from torch.distributed.device_mesh import init_device_mesh

    ((rows, labels),) = batch(True, n=16)
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
    (samples,) = batch(True)
    assert tc.NegMMIOT(group="world")(*samples) == tc.NegMMIOT()(*samples)


def asked(rank, parts):
    """Diagnostics of one process, which the others do not wait for."""
    criterion = tc.NegMMIOT(group="world")
    criterion(*parts[rank])
    return criterion.diagnostics() if rank == 1 else None


def test_one_process_may_ask_for_diagnostics_of_all_samples(pools):
    (samples,) = batch(True)
    criterion = tc.NegMMIOT()
    criterion(*samples)
    found = pools(2).run(asked, shares(samples, [9, 7]))[1]
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
