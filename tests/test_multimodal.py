"""Three modalities in one plan: the dense definition in value and gradient, and what it costs."""

import math
import re
import time
from dataclasses import FrozenInstanceError, replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from benchmarks.cases import Case, prepare
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

import tricouple as tc
from conftest import draw
from reference import relative_error, with_gradients
from tricouple import numeric
from tricouple.ot import dense, multimodal_sinkhorn

ROOT = Path(__file__).parents[1]
NAMES = ("image", "text", "audio")
# Sizes and ids. Of the third all but 3, 4 and 5 lack a partner somewhere.
CASES = {
    "rows": ((20, 20, 20), None),
    "ids": ((12, 9, 15), [torch.arange(12) % 5, torch.arange(9) % 4, torch.arange(15) % 7]),
    "missing": ((6, 7, 70), [torch.arange(6), torch.arange(7) + 2, torch.arange(70) + 3]),
}


def embeddings(sizes, dtype=torch.float64, aligned=0.0, dim=5):
    rows = [draw(n, seed, dim) for seed, n in enumerate(sizes)]
    rows = [row + aligned * draw(len(row), 9, dim) for row in rows]
    return {name: row.to(dtype).requires_grad_() for name, row in zip(NAMES, rows, strict=True)}


def per_edge(c):
    """Three values of sharpness, none larger than c."""
    return torch.tensor([c, 0.7 * c, 0.9 * c], dtype=torch.float64, requires_grad=True)


def named(ids):
    return None if ids is None else dict(zip(NAMES, ids, strict=True))


def difference(found, wanted, leaves):
    """Relative, of values and of gradients, the larger one."""
    pairs = zip(*(with_gradients(value, leaves) for value in (found, wanted)), strict=True)
    return max(relative_error(one, other) for one, other in pairs)


def error(sizes, ids, c, dtype=torch.float64, n_iters=10, aligned=0.0):
    x, c = embeddings(sizes, dtype, aligned), per_edge(c)
    found = tc.MultiModalIOT(sharpness=c, n_iters=n_iters)(x, named(ids))
    assert found.dtype == dtype
    wanted = dense.multimodal_iot([*x.values()], ids, sharpness=c, n_iters=n_iters)
    return difference(found, wanted, [*x.values(), c])


@pytest.mark.parametrize(("c", "n_iters"), [(0.1, 10), (10, 1), (10, 2), (100, 10), (300, 10)])
@pytest.mark.parametrize(("sizes", "ids"), CASES.values(), ids=CASES)
def test_value_and_gradient_are_those_of_the_dense_definition(sizes, ids, c, n_iters):
    assert error(sizes, ids, c, n_iters=n_iters) <= 1e-10


@pytest.mark.parametrize("aligned", [0.0, 3.0])
@pytest.mark.parametrize("c", [0.1, 10.0, 35.0, 300.0])
def test_float32_has_five_digits_at_least(c, aligned):
    assert error((70, 70, 70), None, c, torch.float32, aligned=aligned) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_beyond_the_guarantee_all_is_finite(dtype, monkeypatch):
    for host in ("cpu", "none"):  # a device, where c is not read and float32 stays
        monkeypatch.setattr(numeric, "HOST", host)
        x = embeddings((70, 70, 70), dtype)
        value = tc.MultiModalIOT(sharpness=3000.0)(x)
        for found in with_gradients(value, [*x.values()]):
            assert bool(torch.isfinite(found).all())


def dense_plan(x, c, updates):
    """Log-plan after updates of the axes in some order, in N³ entries."""
    u, v, w = (normalize(row, dim=1) for row in x.values())
    logs = c[0] * (u @ v.T)[:, :, None] + c[1] * (u @ w.T)[:, None] + c[2] * v @ w.T
    for axis in updates:
        others = [other for other in range(3) if other != axis]
        logs = logs - torch.logsumexp(logs, others, keepdim=True) - math.log(logs.shape[axis])
    return logs


@pytest.mark.parametrize("sizes", [(8, 8, 8), (66, 7, 5)])
def test_several_updates_share_a_product(sizes):
    ids = [torch.arange(n) % 5 for n in sizes]
    x, c = embeddings(sizes), per_edge(5.0)
    found = tc.MultiModalIOT(sharpness=c, n_iters=3, inner=3)(x, named(ids))
    # Five products for nine updates: the last turn of the last one sets its first axis alone.
    pairs = (0, 1), (2, 0), (1, 2), (0, 1), (2, 0)
    logs = dense_plan(x, c, [axis for pair in pairs for axis in pair * 3][:-1])
    same = (ids[0][:, None] == ids[1])[:, :, None] & (ids[0][:, None] == ids[2])[:, None]
    wanted = -logs[same].mean() - math.log(int(same.sum()))
    assert difference(found, wanted, [*x.values(), c]) <= 1e-12


def test_plan_equals_the_dense_one():
    x, c = embeddings((8, 70, 9)), per_edge(6.0)
    plan = multimodal_sinkhorn(x, c, n_iters=4, inner=1)
    wanted = dense_plan(x, c, [0, 1, 2] * 4).detach().exp()
    for (a, b), axis in {("image", "text"): 2, ("text", "audio"): 0, ("image", "audio"): 1}.items():
        torch.testing.assert_close(plan.pair_marginal(a, b), wanted.sum(axis))
        torch.testing.assert_close(plan.pair_marginal(b, a), wanted.sum(axis).T)
    for axis, mass in enumerate(plan.marginals()):
        torch.testing.assert_close(mass, wanted.sum([other for other in range(3) if other != axis]))
    i, j = torch.tensor([3, 3, 7]), torch.tensor([1, 69, 0])
    given = plan.conditional(("text", "image"), "audio", pairs=(j, i))
    torch.testing.assert_close(given, wanted[i, j] / wanted[i, j].sum(1, keepdim=True))
    assert plan.n_iters == 4
    assert repr(plan).startswith("MultiModalPlan(8×70×9, ")
    with pytest.raises(FrozenInstanceError):
        plan.n_iters = 5


def test_tolerance_ends_the_sweeps_and_holds():
    x = embeddings((40, 40, 40), aligned=1.0)
    plan = multimodal_sinkhorn(x, 10.0, n_iters=1000, tol=1e-4)
    assert plan.marginal_error <= 1e-4
    assert 1 < plan.n_iters < 500
    assert not multimodal_sinkhorn(x, 10.0, n_iters=1, inner=1, tol=1e-4).converged
    early = tc.MultiModalIOT(n_iters=10_000, tol=1e-8)(x)
    torch.testing.assert_close(early, tc.MultiModalIOT(n_iters=2000)(x), rtol=1e-7, atol=0)


def test_five_updates_a_product_come_closer_to_the_plan():
    x = embeddings((40, 40, 40))
    one, five = (multimodal_sinkhorn(x, 10.0, n_iters=10, inner=k).marginal_error for k in (1, 5))
    assert five < 0.1 * one


@pytest.mark.slow
def test_plan_is_that_of_ott():
    import jax
    import jax.numpy as jnp
    from ott.experimental.mmsinkhorn import MMSinkhorn
    from ott.geometry.costs import Cosine

    x = embeddings((10, 12, 9))
    plan = multimodal_sinkhorn(x, 8.0, n_iters=2000, tol=1e-12)
    with jax.enable_x64(True):
        points = tuple(jnp.asarray(rows.detach().numpy()) for rows in x.values())
        solver = MMSinkhorn(threshold=1e-9, max_iterations=5000, use_danskin=True)
        tensor = torch.tensor(
            solver(points, cost_fns=Cosine(), epsilon=1 / 8.0).tensor.tolist()
        ).double()
    for third, (a, b) in enumerate([NAMES[1:], NAMES[::2], NAMES[:2]]):
        torch.testing.assert_close(plan.pair_marginal(a, b), tensor.sum(third), rtol=0, atol=1e-7)


def pairwise(x, edges, c, ids=None, **how):
    ids = ids or {name: torch.arange(len(rows)) for name, rows in x.items()}
    criterion = tc.IOT(sharpness=c, **how)
    return sum(criterion(x[a], ids[a], ref_emb=x[b], ref_labels=ids[b]) for a, b in edges)


def test_a_star_is_the_sum_of_its_pairs():
    x = embeddings((9, 9, 9)) | {"depth": draw(9, 20).requires_grad_()}
    edges = [("image", other) for other in ("text", "audio", "depth")]
    listed = [("depth", "image"), ("depth", "text"), ("audio", "text")]  # a tree
    for ids in (None, {name: (torch.arange(9) + shift) // 2 for shift, name in enumerate(x)}):
        for given, pairs in (("star", edges), (edges, edges), (listed, listed)):
            found = tc.MultiModalIOT(sharpness=7.0, edges=given)(x, ids)
            wanted = pairwise(x, pairs, 7.0, ids)
            assert difference(found, wanted, [*x.values()]) <= 1e-13


@pytest.mark.parametrize("gradient", ["unrolled", "envelope"])
def test_a_triangle_without_an_edge_is_a_star(gradient):
    x, ring = embeddings((9, 9, 9)), [("image", "text"), ("text", "audio"), ("audio", "image")]
    c, how = per_edge(5.0), {"n_iters": 300, "gradient": gradient}
    found = tc.MultiModalIOT(c, ring, [1, 0, 1], **how)(x)
    wanted = tc.MultiModalIOT(c[::2], ring[::2], **how)(x)
    assert difference(found, wanted, [*x.values(), c]) <= 1e-9


def test_the_envelope_is_the_gradient_of_the_converged_plan():
    x, c = embeddings((70, 70, 70)), per_edge(6.0)
    found = tc.MultiModalIOT(c, n_iters=100, inner=2, gradient="envelope")(x)
    wanted = tc.MultiModalIOT(c, n_iters=200)(x)
    assert difference(found, wanted, [*x.values(), c]) <= 1e-9


def test_second_derivatives_are_refused():
    c = per_edge(6.0)
    value = tc.MultiModalIOT(c)(embeddings((5, 5, 5)))
    (gradient,) = torch.autograd.grad(value, c, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.sum().backward()


def test_joint_is_infonce_of_added_scores():
    ids = [torch.tensor([0, 1, 2, 9]), torch.tensor([2, 1, 1, 0, 8]), torch.tensor([1, 2, 0, 2])]
    x, c = embeddings((4, 5, 4)), (3.0, 4.0, 5.0)
    z, wanted = [normalize(rows, dim=1) for rows in x.values()], 0.0
    for a, b, target in ((1, 2, 0), (0, 2, 1), (0, 1, 2)):
        s_a, s_b = c[a + target - 1] * z[a] @ z[target].T, c[b + target - 1] * z[b] @ z[target].T
        logs = (s_a[:, None] + s_b).log_softmax(2)
        same = (ids[a][:, None] == ids[b])[:, :, None] & (ids[a][:, None] == ids[target])[:, None]
        wanted = wanted - logs[same].mean()
    found = tc.MultiModalIOT(torch.tensor(c), "joint")(x, named(ids))
    assert difference(found, wanted, [*x.values()]) <= 1e-12


def test_sharpness_learns_and_half_precision_trains():
    criterion = tc.MultiModalIOT(nn.Parameter(torch.full((3,), 10.0)))
    x = {name: torch.randn(6, 4, dtype=torch.bfloat16, requires_grad=True) for name in NAMES}
    with torch.autocast("cpu"):
        criterion(x).backward()
    (c,) = criterion.parameters()
    assert all(bool((leaf.grad != 0).all()) for leaf in (c, *x.values()))
    assert "learnable" in repr(criterion)


@pytest.mark.parametrize("gradient", ["unrolled", "envelope"])
def test_nothing_is_read_from_a_device(gradient, monkeypatch):
    monkeypatch.setattr(numeric, "HOST", "none")
    with FakeTensorMode():
        x = {name: torch.randn(70, 4, requires_grad=True) for name in NAMES}
        ids = {name: torch.arange(70) // 2 for name in NAMES}
        tc.MultiModalIOT(n_iters=2, gradient=gradient)(x, ids).backward()
        assert all(rows.grad.shape == rows.shape for rows in x.values())


def test_a_device_gives_the_numbers_of_the_host(monkeypatch):
    x = embeddings((9, 9, 9), torch.float32)
    for edges in ("triangle", "star", "joint"):
        wanted = tc.MultiModalIOT(5.0, edges)(x)
        with monkeypatch.context() as patched:
            patched.setattr(numeric, "HOST", "none")
            assert difference(tc.MultiModalIOT(5.0, edges)(x), wanted, [*x.values()]) <= 1e-5


@pytest.mark.parametrize("inner", [1, 2])
def test_memory_is_that_of_three_matrices(inner):
    options = {"n_iters": 1, "inner": inner}
    call = prepare(Case("", "MultiModalIOT", 1024, 32, sets="three", options=options))
    with torch.profiler.profile(profile_memory=True) as found:
        call()
    events = found.profiler.kineto_results.events()
    sizes = (event.nbytes() for event in events if event.name() == "[memory]")
    assert 1.5 < max(accumulate(sizes)) / (4 * 1024**2) < 4


def test_it_is_faster_than_the_dense_tensor():
    case = Case("", "MultiModalIOT", 128, 32, sets="three")
    calls = prepare(case), prepare(replace(case, loss="dense_multi_modal"))
    for ours, dense_one in zip(*(call() for call in calls), strict=True):
        assert relative_error(ours, dense_one) <= 1e-5
    ours, tensor = (min(seconds(call) for _ in range(3)) for call in calls)
    assert ours < tensor / 5


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


ROWS = {name: torch.ones(4, 3) for name in NAMES}
IDS = {name: torch.arange(4) for name in NAMES}
WIDE, LONG, NAN = torch.ones(4, 5), torch.ones(5, 3), torch.full((4, 3), torch.nan)


@pytest.mark.parametrize(
    ("message", "options", "changed", "ids"),
    [
        ("three modalities, got", {}, {"depth": torch.ones(4, 3)}, None),
        ("one width and one device", {}, {"text": WIDE}, None),
        ("belongs together, got", {}, {"text": LONG}, None),
        (r"embeddings\['text'\] must be finite", {}, {"text": NAN}, None),
        ("no complete triple", {}, {}, IDS | {"text": torch.arange(4) + 4}),
        ("no complete triple", {"edges": "joint"}, {}, IDS | {"text": torch.arange(4) + 4}),
        (r"ids\['text'\] must hold one label", {}, {}, IDS | {"text": torch.arange(3)}),
        ("ids must be a dict of", {}, {}, {"image": torch.arange(4)}),
        ("pairs of .*'video'", {"edges": [("image", "video")]}, {}, None),
        ("with all of", {"edges": [("image", "text")]}, {}, None),
        ("different pairs", {"edges": [("image", "text"), ("text", "image")]}, {}, None),
        ("'triangle', 'star', 'joint'", {"edges": "ring"}, {}, None),
        ("'unrolled', 'envelope'", {"gradient": "implicit"}, {}, None),
        ("of one process alone", {"group": "world"}, {}, None),
        ("must have 1 or 3", {"sharpness": torch.ones(2)}, {}, None),
        ("finite and >= 0", {"sharpness": -1.0}, {}, None),
        ("expected 3, one per edge", {"weights": [1, 2]}, {}, None),
        ("leave an edge", {"edges": "star", "weights": [1, 0]}, {}, None),
        ("weights must be finite", {"weights": [1, -2, 1]}, {}, None),
        ("inner must be at least 1", {"inner": 0}, {}, None),
    ],
)
def test_bad_input_is_named(message, options, changed, ids):
    with pytest.raises(ValueError, match=message):
        tc.MultiModalIOT(**options)(ROWS | changed, ids)


def test_bad_questions_to_a_plan_are_named():
    plan = multimodal_sinkhorn(ROWS | {"text": LONG})
    for message, ask in {
        "two different modalities": lambda: plan.pair_marginal("image", "image"),
        "is 'audio', got 'text'": lambda: plan.conditional(("image", "text"), "text"),
        "pass pairs": lambda: plan.conditional(("image", "text"), "audio"),
        "two modalities or more": lambda: tc.MultiModalIOT()({"image": LONG}),
        "takes three": lambda: multimodal_sinkhorn({name: ROWS[name] for name in NAMES[:2]}),
    }.items():
        with pytest.raises(ValueError, match=message):
            ask()


def test_numbers_of_the_page_are_those_of_the_study():
    measured = (ROOT / "docs/modalities.md").read_text().partition("## What was measured")[2]
    known = (ROOT / "results/modalities/verdict.md").read_text()
    numbers = {*re.findall(r"\d+\.\d\d", measured)}
    assert len(numbers) > 50
    assert not numbers - {*re.findall(r"\d+\.\d\d", known)}
