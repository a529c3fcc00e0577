"""Half of a symmetric kernel does what the whole would do."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from conftest import UNCONVERGED
from tricouple import IOT, NegMMIOT, PushPull, distributed
from tricouple.memory import IN_MATRICES, Storage
from tricouple.ot import engine
from tricouple.ot.sweeps import native, threads
from tricouple.ot.sweeps.halves import SymmetricKernels
from tricouple.ot.sweeps.kernels import Factors, Products
from tricouple.ot.sweeps.parts import ring, triangle

pytestmark = pytest.mark.skipif(native.compiled is None, reason="built without a compiler")

STREAMED = Storage(streamed=True, tile_entries=1 << 20, budget=1 << 24)


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 2, 3])
def n_threads(request, set_threads):
    set_threads(request.param)
    return request.param


def embeddings(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return normalize(torch.randn(n, 6, generator=generator, dtype=dtype), dim=1)


def dense(kernels: SymmetricKernels, which: int) -> Tensor:
    """The same kernel, written down: exp of the scores, scaled by the shifts, no diagonal."""
    scores = kernels.factors[which] * (kernels.like @ kernels.like.T)
    shifts = kernels.row_shifts[which][:, None] + kernels.column_shifts[which]
    return torch.exp(scores + shifts).fill_diagonal_(0.0)


def made(n: int, storage: Storage, factors=(7.0, -7.0)) -> SymmetricKernels:
    z = embeddings(n)
    return SymmetricKernels(Products(z, z), factors, storage)


@pytest.mark.parametrize("n", [2, 5, 511, 512, 513, 1100])
@pytest.mark.parametrize("height", [1, 3, 512])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_tiles_cover_every_pair_once(n, height, number):
    seen = torch.zeros(n, n, dtype=torch.int8)
    end = 0
    for whole in triangle(n, height):
        for part in whole.split(number):
            assert part.start == end
            end = part.stop
            seen[part.rows, part.columns] += 1
            seen[part.columns.start + part.own : part.columns.stop, part.rows] += 1
    assert bool((seen == 1).all())


@pytest.mark.parametrize("counts", [[1], [9], [4, 4], [8, 7, 8], [0, 5, 1, 0], [20, 1], [6] * 5])
@pytest.mark.parametrize("height", [1, 3, 4])
def test_processes_cover_every_pair_once_and_their_own_rows_whole(counts, height):
    n = sum(counts)
    seen, sizes = torch.zeros(n, n, dtype=torch.int8), []
    for rank in range(len(counts)):
        own = distributed.own(counts, rank)
        mine = torch.zeros(n, n, dtype=torch.int8)
        tiles, others = ring(counts, rank, height)
        for part in tiles:
            assert own.start <= part.rows.start < part.rows.stop <= own.stop
            mine[part.rows, part.columns] += 1
            mine[part.columns.start + part.own : part.columns.stop, part.rows] += 1
        seen += mine
        for part in others:
            mine[part.rows, part.columns] += 1
        assert bool((mine[own] == 1).all())
        sizes.append(sum(part.size for part in tiles))
    assert bool((seen == 1).all())
    # In proportion to its rows, up to a block or two for each of them.
    for size, count in zip(sizes, counts, strict=True):
        assert abs(size - n * count / 2) <= 2 * height * count


# At 2300 some lines are kept and others wider than a block, so that blocks off the diagonal count.
@pytest.mark.parametrize("n", [3, 17, 600, 1100, 2300])
@pytest.mark.parametrize("memory", [IN_MATRICES, STREAMED], ids=["stored", "streamed"])
def test_sums_are_those_of_the_whole_kernel(n, memory, n_threads):
    kernels = made(n, memory)
    weights = torch.rand(n, dtype=torch.float64)
    for which in (0, 1):
        whole = dense(kernels, which)
        torch.testing.assert_close(kernels.row_sums(which, weights)[0], whole @ weights)
        torch.testing.assert_close(kernels.column_sums(which, weights[None]), whole.T @ weights)
    passed = kernels.through(0, 1, weights, lambda rows, sums: sums * 2)
    torch.testing.assert_close(passed, dense(kernels, 1) @ (2 * dense(kernels, 0) @ weights))


@pytest.mark.parametrize("n", [3, 600, 1100])
@pytest.mark.parametrize("memory", [IN_MATRICES, STREAMED], ids=["stored", "streamed"])
def test_the_gradient_is_that_of_both_entries(n, memory, n_threads):
    kernels = made(n, memory)
    factors = [
        Factors(*(torch.randn(4, *shape, dtype=torch.float64) for shape in ((1, n), (n,))))
        for _ in range(2)
    ]
    gradient = torch.zeros(n, n, dtype=torch.float64)
    for which, (left, right) in enumerate(factors):
        gradient += (-1) ** which * (left[:, 0].T @ right) * dense(kernels, which)
    expected = gradient + gradient.T
    found = torch.zeros_like(expected)
    for rows, values, columns in kernels.score_gradient(factors):
        found[rows, columns] += values
    torch.testing.assert_close(found + found.T, expected)


@pytest.mark.parametrize("memory", [IN_MATRICES, STREAMED], ids=["stored", "streamed"])
def test_released_kernels_are_computed_again(memory):
    kernels = made(700, memory)
    weights = torch.rand(700, dtype=torch.float64)
    before = kernels.row_sums(1, weights)
    kernels.release()
    torch.testing.assert_close(kernels.row_sums(1, weights), before)


@pytest.mark.parametrize("sharpness", [1.0, 100.0, 1000.0])
def test_no_entry_exceeds_one_and_no_row_is_lost(sharpness):
    z = embeddings(600)
    z[:300] = normalize(z[0] + 1e-3 * z[:300], dim=1)  # a crowd, and others that are alone
    kernels = SymmetricKernels(Products(z, z), (sharpness, -sharpness), IN_MATRICES)
    for which in (0, 1):
        tops = dense(kernels, which).log().amax(1)
        assert float(tops.max()) <= 1e-9
        # Six rounds halve a shortfall of at most c, if ten was not enough to stop before.
        assert float(tops.min()) >= -max(10.0, sharpness / 2**6)


def test_the_compiled_exponential_is_exact_to_the_last_digit():
    for dtype, low in ((torch.float32, -87.0), (torch.float64, -708.0)):
        x = torch.linspace(low - 2, 0, 9 * 1024, dtype=dtype)
        shifts, out = torch.zeros_like(x), torch.empty_like(x)
        addresses = native.addresses(x, shifts, out)
        native.compiled.tile_kernel(x.element_size(), 9, 1024, 9, 0, 0, 1.0, *addresses)
        diagonal = torch.zeros(9 * 1024, dtype=torch.bool)
        diagonal[torch.arange(9) * 1025] = True
        assert not out[diagonal].any()
        x, out = x[~diagonal], out[~diagonal]
        info = torch.finfo(dtype)
        exact = x.double().exp()
        normal = exact > 4 * info.tiny
        error = ((out.double() - exact) / exact)[normal].abs().max()
        assert float(error) <= 2 * info.eps
        assert float(out[~normal].max()) <= 5 * info.tiny
        assert float(out[x < low].max()) == 0.0


def loss_and_gradient(criterion, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_()
    loss = criterion(leaf, labels)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


LOSSES = {
    "neg_mmiot": lambda **options: NegMMIOT(temperature=0.2, epsilon=0.5, **options),
    "push_pull": lambda **options: PushPull(**options),
    "iot": lambda **options: IOT(epsilon=0.1, **options),
}


@UNCONVERGED
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gradient", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_are_those_of_whole_matrices(name, gradient, dtype, monkeypatch):
    n = 1060  # above what is computed in whole matrices anyway
    z, labels = embeddings(n, dtype), torch.arange(n) % 7 + torch.arange(n) % 2
    halves = loss_and_gradient(LOSSES[name](gradient=gradient), z, labels)
    monkeypatch.setattr(native, "compiled", None)
    wholes = loss_and_gradient(LOSSES[name](gradient=gradient), z, labels)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(halves[0], wholes[0], rtol=tolerance, atol=0)
    assert float((halves[1] - wholes[1]).norm() / wholes[1].norm()) <= tolerance * 10


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
def test_temperature_receives_its_gradient(memory, monkeypatch):
    n = 1060
    z, labels = embeddings(n), torch.arange(n) // 4
    found = []
    for compiled in (native.compiled, None):
        monkeypatch.setattr(native, "compiled", compiled)
        temperature = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        NegMMIOT(temperature=temperature, epsilon=0.5, memory=memory)(z, labels).backward()
        found.append(temperature.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=0)


def test_results_repeat_to_the_last_bit(n_threads):
    z, labels = embeddings(1200, torch.float32), torch.arange(1200) // 3
    first, second = (loss_and_gradient(NegMMIOT(), z, labels) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_outliers_are_left_to_halves_with_more_digits(monkeypatch):
    n = 1100
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 10
    centres = normalize(torch.randn(10, 32, generator=generator), dim=1)
    z = centres[labels] + 0.02 * torch.randn(n, 32, generator=generator)
    z[:20] = torch.randn(20, 32, generator=generator)
    with monkeypatch.context() as patch:
        patch.delattr(engine, "LogLinearTriplet")  # what logarithms would need
        loss = NegMMIOT(temperature=1.0, epsilon=0.01)(z, labels)
    exact = NegMMIOT(temperature=1.0, epsilon=0.01)(z.double(), labels)
    assert math.isclose(float(loss), float(exact), rel_tol=1e-5)


def test_a_forked_process_starts_its_own_threads():
    threads.in_threads(sum, [[1], [2]])
    assert threads._pool.cache_info().currsize > 0
    child = os.fork()
    if child == 0:
        os._exit(threads._pool.cache_info().currsize)
    assert os.waitpid(child, 0)[1] == 0


def test_pytorchs_own_team_is_found():
    gnu = sys.platform == "linux" and "OpenMP" in torch.__config__.parallel_info()
    assert bool(native.team) == gnu


def test_calls_of_a_list_go_to_the_team_and_are_done_once(set_threads):
    """A team of one, which counts."""
    work, seen = ctypes.CFUNCTYPE(None, ctypes.c_void_p), []
    kind = ctypes.CFUNCTYPE(None, work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    counting = kind(lambda take, all_calls, number, _: (seen.append(number), take(all_calls))[0])
    before, criterion = native.team, NegMMIOT(sharpness=10, shaping="hinge")
    z = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    set_threads(2)
    try:
        wanted = criterion(z, torch.arange(600) % 7)
        native._use(ctypes.cast(counting, ctypes.c_void_p).value)
        found = criterion(z, torch.arange(600) % 7)
    finally:
        native._use(before)
    assert set(seen) == {2}
    assert torch.equal(found, wanted)


def test_a_forked_process_works_alone():
    """Where OpenMP has none of the threads that it counts on."""
    child = os.fork()
    if child == 0:
        os._exit(int(native.team != 0))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("shaping", ["linear", "hinge", "log_sigmoid", "linear, by logarithms"])
@pytest.mark.parametrize("team", [True, False])
def test_calls_are_shared_by_threads_of_any_kind(shaping, team, monkeypatch, set_threads):
    """With OpenMP's threads and with our own; what a share computes is its own, to the last bit."""
    z = torch.randn(601, 16, generator=torch.Generator().manual_seed(0))
    kind, _, logarithms = shaping.partition(", ")
    if logarithms:  # one sample is opposite to all others
        z = 1 + 0.1 * z
        z[0] *= -1
    criterion, labels = NegMMIOT(sharpness=30, shaping=kind), torch.arange(601) % 7
    found, called, shared = [], set(), native.shared
    monkeypatch.setattr(
        native, "shared", lambda do, *args: called.add(do.__name__) or shared(do, *args)
    )
    if not team:
        monkeypatch.setattr(native, "team", 0)
    for number in (1, 2, 3, 3):
        set_threads(number)
        found.append(loss_and_gradient(criterion, z, labels))
    assert ("log_gradient" in called) == bool(logarithms)
    assert all(map(torch.equal, found[2], found[3]))
    for value, gradient in found[1:]:
        torch.testing.assert_close(value, found[0][0], rtol=1e-5, atol=0)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-7)


def test_arguments_of_shared_calls_are_checked():
    for calls in ([(4, 1)], [7], 7):
        with pytest.raises((TypeError, SystemError)):
            native.compiled.tiles_product(calls, 1)
    with pytest.raises(TypeError, match="expected 7 arguments, got 2"):
        native.compiled.tiles_product([(4, 1)], 1)
    for in_turn in (0, 2, -1):
        with pytest.raises(ValueError, match=f"1 calls are not shared by {in_turn}"):
            native.compiled.tiles_product([(4, 1)], in_turn)
    assert native.compiled.tiles_product([], 1) is None


def test_threads_with_matrix_products_end_and_leave_the_settings(n_threads):
    alive = threading.active_count()
    found = [torch.empty(0)] * 3

    def work(number: int) -> None:
        found[number] = torch.full((), torch.get_num_threads())

    threads.in_passing_threads(work, range(3))
    assert [int(one) for one in found] == [1, 1, 1]
    assert torch.get_num_threads() == n_threads
    assert threading.active_count() == alive
    with pytest.raises(ZeroDivisionError):
        threads.in_passing_threads(lambda number: number / 0, range(2))
    assert torch.get_num_threads() == n_threads


def test_every_item_is_dealt_once():
    for n_items in (1, 2, 7, 12):
        for n in (1, 2, 3):
            shares = [threads.dealt(range(n_items), k, n) for k in range(n)]
            assert sorted(item for share in shares for item in share) == list(range(n_items))


@pytest.mark.parametrize("share", [threads.in_threads, threads.in_passing_threads])
@pytest.mark.parametrize("more", [0, 2])
def test_nobody_is_left_at_work_however_often_ctrl_c_is_pressed(share, more, monkeypatch):
    import concurrent.futures

    presses, waited = [KeyboardInterrupt] * more, concurrent.futures.wait
    started, ended = threading.Event(), threading.Event()

    def impatient(others):
        if presses:
            raise presses.pop()
        return waited(others)

    def work(number: int) -> None:
        if number == 0:
            started.wait()
            raise KeyboardInterrupt
        started.set()
        time.sleep(0.2)
        ended.set()

    monkeypatch.setattr(concurrent.futures, "wait", impatient)
    with pytest.raises(KeyboardInterrupt):
        share(work, [0, 1])
    assert not presses
    assert ended.is_set()
