"""Streamed kernels: the same losses and gradients, without N×N matrices."""

from __future__ import annotations

import gc

import pytest
import torch

import tricouple as tc
from conftest import UNCONVERGED
from reference import relative_error, with_gradients
from tricouple import memory
from tricouple.memory import Loan, choose_storage

STREAMING = {
    "neg_mmiot": tc.NegMMIOT,
    "push_pull": lambda epsilon=0.1, **options: tc.PushPull(
        epsilon_pos=epsilon, epsilon_neg=epsilon, **options
    ),
    "iot": tc.IOT,
    "log_sigmoid": lambda **options: tc.NegMMIOT(shaping="log_sigmoid", **options),
}
# One row of a tile of five matrices with these many columns, in float64.
ROW = 5 * 8


def clustered(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 7
    centres = torch.randn(7, 16, generator=generator)
    return centres[labels] + torch.randn(n, 16, generator=generator), labels


@UNCONVERGED
@pytest.mark.parametrize("gradient", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("name", STREAMING)
def test_streamed_equals_stored_in_tiles_of_any_size(settings, name, gradient):
    # Terms of a quadrature, or sweeps of conjugate gradients, are slow in tiny tiles.
    slow = name == "log_sigmoid" or gradient == "implicit"
    for setting in ["unbalanced"] if slow else settings:
        compare_streamed_with_stored(settings[setting], name, gradient)


def compare_streamed_with_stored(batch, name, gradient):
    stored = STREAMING[name](epsilon=0.5, gradient=gradient, memory="matrices")
    wanted, wanted_gradient = with_gradients(batch.loss(stored), batch.leaves)
    columns = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
    # The last tile is smaller than the others.
    budget = (len(batch.embeddings) // 2 + 1) * columns * ROW
    streamed = STREAMING[name](
        epsilon=0.5, gradient=gradient, memory="streamed", memory_budget=budget
    )
    found, gradient = with_gradients(batch.loss(streamed), batch.leaves)
    assert relative_error(found, wanted) <= 1e-11
    assert relative_error(gradient, wanted_gradient) <= 1e-9


@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull", "iot"])
def test_streamed_equals_stored_in_float32(name):
    embeddings, labels = clustered(600)
    results = []
    for mode in ("matrices", "streamed"):
        leaf = embeddings.clone().requires_grad_()
        loss = STREAMING[name](memory=mode)(leaf, labels)
        results.append((loss, torch.autograd.grad(loss, leaf)[0]))
    (stored, stored_gradient), (streamed, streamed_gradient) = results
    assert relative_error(streamed, stored) <= 1e-5
    assert relative_error(streamed_gradient, stored_gradient) <= 1e-4


@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull", "log_sigmoid"])
def test_streamed_learnable_temperature_has_the_same_gradient(name):
    embeddings, labels = clustered(40)
    slopes = []
    for mode in ("matrices", "streamed"):
        temperature = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        loss = STREAMING[name](temperature=temperature, memory=mode)(embeddings.double(), labels)
        slopes.append(torch.autograd.grad(loss, temperature)[0])
    assert relative_error(slopes[1], slopes[0]) <= 1e-9


def test_streamed_sweeps_fall_back_on_float64():
    embeddings, labels = clustered(90)
    losses = [
        tc.NegMMIOT(temperature=0.05, epsilon=0.05, memory=mode)(embeddings, labels)
        for mode in ("matrices", "streamed")
    ]
    assert relative_error(losses[1], losses[0]) <= 1e-5


@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull"])
@pytest.mark.parametrize("scene", ["three samples", "outlier", "one class and another sample"])
def test_streamed_sweeps_refuse_nothing(name, scene):
    # With three samples all that a sum holds is excluded but for one term; a class that is alone
    # with one other sample has imposed marginals that only infinite scalings would reach.
    n = 3 if scene == "three samples" else 40
    embeddings, labels = clustered(n, seed=1)[0], torch.arange(n) // 2
    if scene == "outlier":
        embeddings = embeddings + 5.0
        embeddings[0] = -embeddings[0]
    marginals = "target" if scene == "one class and another sample" else "uniform"
    if marginals == "target":
        labels = (torch.arange(n) == 0).long()
    found = []
    for mode in ("matrices", "streamed"):
        leaf = embeddings.clone().requires_grad_()
        loss = STREAMING[name](memory=mode, marginals=marginals)(leaf, labels)
        found.append(with_gradients(loss, [leaf]))
    assert relative_error(found[1][0], found[0][0]) <= 1e-5
    scale = max(1.0, float(found[0][1].norm()))
    assert float((found[1][1] - found[0][1]).norm()) <= 1e-5 * scale


def test_streamed_pass_allocates_no_matrix_of_all_pairs(monkeypatch):
    embeddings, labels = clustered(500)
    sizes = []
    original = torch.Tensor.new_empty

    def record(self, *shape, **options):
        made = original(self, *shape, **options)
        sizes.append(made.numel())
        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", record)
    leaf = embeddings.requires_grad_()
    budget = 10 * 500 * 5 * 4  # ten rows
    tc.NegMMIOT(memory="streamed", memory_budget=budget)(leaf, labels).backward()
    assert sizes
    assert max(sizes) <= 5 * 10 * 500


def test_info_nce_in_small_tiles_is_the_same(batch):
    wanted, wanted_gradient = with_gradients(batch.loss(tc.InfoNCE()), batch.leaves)
    columns = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
    criterion = tc.InfoNCE(memory="streamed", memory_budget=2 * columns * ROW)
    found, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    assert relative_error(found, wanted) <= 1e-12
    assert relative_error(gradient, wanted_gradient) <= 1e-12


@pytest.mark.parametrize(
    ("mode", "budget", "streamed", "left"),
    [
        ("auto", 2 * 100 * 100 * 4, False, 2 * 100 * 100 * 4),
        ("auto", 2 * 100 * 100 * 4 - 1, True, 2 * 100 * 100 * 4 - 1),
        ("streamed", 1e9, True, 1e9),
        ("matrices", 1e4, False, float("inf")),  # what is asked for has no budget
    ],
)
def test_matrices_are_stored_if_asked_for_or_if_the_budget_allows(mode, budget, streamed, left):
    storage = choose_storage(mode, budget, (100, 100), torch.empty(1), matrices=2)
    assert (storage.streamed, storage.budget) == (streamed, left)


def test_tiles_stay_within_the_budget():
    shape, like = (5000, 1000), torch.empty(1)
    storage = choose_storage("streamed", 5 * 4 * 1000 * 7, shape, like, matrices=2)
    assert storage.tile_entries == 7000


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_a_budget_too_small_for_one_row_is_refused(make):
    embeddings, labels = clustered(100)
    criterion = make(memory="streamed", memory_budget=100)
    with pytest.raises(ValueError, match=r"memory_budget=100 bytes is too small.*takes 2000"):
        criterion(embeddings, labels)


@pytest.mark.parametrize("options", [{"memory": "disk"}, {"memory_budget": 0}])
def test_bad_memory_options_are_refused(options):
    with pytest.raises(ValueError, match="memory"):
        tc.NegMMIOT(**options)


def test_shaped_costs_and_uniformity_cannot_be_streamed():
    embeddings, labels = clustered(30)
    with pytest.raises(ValueError, match="memory='streamed' needs shaping='linear'"):
        tc.PushPull(shaping="hinge", memory="streamed")(embeddings, labels)
    with pytest.raises(ValueError, match="memory='matrices'"):
        tc.IOT(uniformity=0.2, memory="streamed")


def test_matrices_are_returned_and_used_again():
    loan = Loan(2, torch.empty(1), 40, 50)
    addresses = {matrix.data_ptr() for matrix in loan.matrices}
    other = Loan(1, torch.empty(1), 40, 50)
    assert other.matrices[0].data_ptr() not in addresses
    del loan
    gc.collect()
    again = Loan(2, torch.empty(1), 40, 50)
    assert {matrix.data_ptr() for matrix in again.matrices} == addresses


def test_matrices_of_many_losses_at_once_do_not_pile_up():
    kind = ((40, 50), torch.float32)
    loans = [Loan(1, torch.empty(1), 40, 50) for _ in range(20)]
    assert memory._returned[kind] == []
    loans.clear()
    assert 2 <= len(memory._returned[kind]) <= 4
    memory.empty_cache()
    assert not memory._returned


def test_two_losses_in_one_graph_do_not_share_matrices():
    embeddings, labels = clustered(1100)
    leaf = embeddings.requires_grad_()
    criterion = tc.NegMMIOT()
    (alone,) = torch.autograd.grad(criterion(leaf, labels), leaf)
    total = criterion(leaf, labels) + criterion(leaf.flip(1), labels.flip(0))
    (both,) = torch.autograd.grad(total, leaf)
    (second,) = torch.autograd.grad(criterion(leaf.flip(1), labels.flip(0)), leaf)
    assert relative_error(both, alone + second) <= 1e-5
