"""One loss of several processes is that of one process with all samples."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import tricouple as tc
from processes import Pool
from tricouple.ot import engine

SIZES = {
    "even": [8, 8],
    "uneven": [9, 3, 4],
    "one row": [1, 6, 5, 4],
    "no rows": [10, 0, 6],
}


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Processes that wait for work, by their number."""
    found: dict[int, Pool] = {}

    def of(world: int) -> Pool:
        if world not in found:
            found[world] = Pool(world, tmp_path_factory.mktemp(f"world{world}"))
        return found[world]

    yield of
    for pool in found.values():
        pool.close()


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


def together(rank, make, settings, parts, temperature, smallest):
    """The same of a process's share, in kernels that are shared unless they are this small."""
    with mock.patch.object(engine, "LARGEST", smallest):
        criterion = make(**settings, group="world")
        return differentiated(criterion, [part[rank] for part in parts], temperature)


def compare(pools, make, settings, sizes, within, *, dtype=torch.float64, temperature=None, **more):
    """The largest errors of values and gradients, relative to the largest of each."""
    smallest = more.pop("smallest", 0)
    samples = batch(within, dtype, **more)
    value, gradients = differentiated(make(**settings), samples, temperature)
    parts = [shares(part, sizes) for part in samples]
    answers = pools(len(sizes)).run(together, make, settings, parts, temperature, smallest)
    errors = [float(abs(found - value) / abs(value)) for found, _ in answers]
    for k, wanted in enumerate(gradients):
        parts = [gradient[k] for _, gradient in answers]
        found = torch.cat(parts) / len(sizes) if wanted.ndim else torch.stack(parts)
        errors.append(float((found - wanted).abs().max() / wanted.abs().max()))
    return max(errors)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@pytest.mark.parametrize("gradient", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_a_coupling_of_several_processes_is_that_of_one(
    pools, make, within, gradient, memory, sizes
):
    settings = {"gradient": gradient, "memory": memory, "n_iters": 5}
    mild = 0.2 if make is tc.IOT else 2.0  # c = 5
    if gradient == "implicit":
        settings["n_iters"], mild = 30, 5 * mild
    assert compare(pools, make, settings, sizes, within, temperature=mild) < 1e-12


BASELINES = [tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.FusedGromov, tc.VICReg]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", BASELINES)
def test_a_baseline_of_several_processes_is_that_of_one(pools, make, within, sizes):
    if make is tc.FusedGromov and within:
        return  # it has no meaning there
    temperature = None if make is tc.VICReg else 0.2
    assert compare(pools, make, {}, sizes, within, temperature=temperature) < 1e-12


@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_in_single_precision_too(pools, make, within):
    sizes, wide = [40, 25, 31], {"dtype": torch.float32, "n": 96}
    assert compare(pools, make, {"sharpness": 10.0}, sizes, within, **wide) < 1e-5


@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_hard_batches_end_with_logarithms_on_all_processes(pools, make, within):
    settings = {"sharpness": 3000.0, "n_iters": 4}
    for sizes in SIZES.values():
        assert compare(pools, make, settings, sizes, within) < 1e-10


@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_processes_stop_after_the_same_sweep(pools, make, within):
    settings = {"sharpness": 10.0, "n_iters": 100, "tol": 1e-4}
    assert compare(pools, make, settings, [9, 7], within) < 1e-12
    assert compare(pools, make, settings | {"sharpness": 2000.0}, [9, 7], within) < 1e-10
