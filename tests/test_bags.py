"""Bags: the plan inside each bag is its own Sinkhorn's; it finds pairs, and trains."""

import pytest
import torch
from torch.nn.functional import normalize

import tricouple as tc
from conftest import draw


def bags_of(*sizes, seed=0):
    """Bags with numbers that are not their places, in random order."""
    bags = 7 * torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)) - 3
    return bags[torch.randperm(len(bags), generator=torch.Generator().manual_seed(seed))]


def pairs_of(n_bags, size, noise, dim=32):
    """Images and texts in bags, and the text of each image."""
    images = draw(n_bags * size, 0, dim)
    texts = images + noise * draw(n_bags * size, 1, dim)
    bags = torch.arange(n_bags).repeat_interleave(size)
    order = torch.randperm(len(bags), generator=torch.Generator().manual_seed(2))
    return images[order], texts, (bags[order], bags), order


def one_by_one(images, texts, bags, sharpness, orphans):
    """Each bag's plan by itself: the definition, with a dummy row and column."""
    found = torch.zeros(len(images), len(texts), dtype=torch.float64)
    for bag in bags[0].unique():
        rows, columns = ((side == bag).nonzero()[:, 0] for side in bags)
        n, m = len(rows), len(columns)
        cost = torch.zeros(n + 1, m + 1, dtype=torch.float64)
        cost[:n, :m] = 1 - normalize(images[rows]) @ normalize(texts[columns]).T
        cost[n, m] = torch.inf
        matched = (1 - orphans) * min(n, m)
        masses = [torch.ones(k + 1, dtype=torch.float64) for k in (n, m)]
        masses[0][-1], masses[1][-1] = m - matched, n - matched
        if orphans == 0:
            cost, masses = cost[:n, :m], [mass[:-1] for mass in masses]
        total = masses[0].sum()
        sides = dict(zip(("row_marginal", "column_marginal"), masses, strict=True))
        sides = {name: mass / total for name, mass in sides.items()}
        plan = tc.ot.sinkhorn(cost, 1 / sharpness, **sides, n_iters=3000).dense() * total
        found[rows[:, None], columns] = plan[:n, :m]
    return found


@pytest.mark.parametrize("orphans", [0.0, 0.3])
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_bags_are_matched_as_if_each_were_alone(sharpness, orphans):
    images, texts = draw(15, 0, 16), draw(15, 1, 16)
    bags = bags_of(4, 6, 1, 4), bags_of(4, 6, 1, 4, seed=1)
    found = tc.match_bags(images.requires_grad_(), texts, bags, sharpness, orphans)
    wanted = one_by_one(images.detach(), texts, bags, sharpness, orphans)
    assert not found.requires_grad
    assert torch.allclose(found, wanted, rtol=0, atol=1e-10)
    assert found.sum() == pytest.approx(15 * (1 - orphans))
    assert found.sum(1).max() <= 1 + 1e-15
    half = tc.match_bags(images.half(), texts.float(), bags, sharpness, orphans)
    assert torch.allclose(half, wanted.float(), atol=1e-3)


def test_bags_of_unequal_sizes_leave_orphans():
    images, texts = draw(9, 0, 8), draw(11, 1, 8)
    bags = bags_of(3, 5, 1), bags_of(4, 3, 1, 3)  # the last has texts alone
    found = tc.match_bags(images, texts, bags, 3.0, 0.2)
    assert torch.allclose(found, one_by_one(images, texts, bags, 3.0, 0.2), rtol=0, atol=1e-10)
    assert found.sum(1).max() <= 1 + 1e-15
    assert found.sum() == pytest.approx(0.8 * (3 + 3 + 1))
    same = tc.match_bags(images, images, bags[0].tolist())
    assert torch.equal(same, tc.match_bags(images, images, (bags[0], bags[0])))


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.95), (2.0, 0.0)])
def test_pairs_of_a_bag_are_recovered(noise, least):
    images, texts, bags, order = pairs_of(60, 10, noise)
    scores = 10 * normalize(images) @ normalize(texts).T
    softmax = scores.masked_fill(bags[0][:, None] != bags[1], -torch.inf).softmax(1)
    plan = tc.match_bags(images, texts, bags)
    found, rows = ((part.argmax(1) == order).double().mean() for part in (plan, softmax))
    assert found >= max(least, min(1.0, rows + 0.03))


def test_a_stack_of_plans_is_each_plan():
    costs, n_iters = [draw(n, n, m).abs() for n, m in ((3, 4), (5, 2), (5, 4))], 40
    stack = torch.full((4, 5, 4), 9.0, dtype=torch.float64)  # the last plan is padding alone
    mask = torch.zeros_like(stack, dtype=torch.bool)
    for k, cost in enumerate(costs):
        stack[k, : len(cost), : cost.shape[1]] = cost
        mask[k, : len(cost), : cost.shape[1]] = True
    stack.requires_grad_()
    plans = tc.ot.sinkhorn(stack, 0.3, mask=mask, n_iters=n_iters)
    assert repr(plans).startswith("PairPlan(4×5×4, epsilon=0.3, n_iters=40, marginal_error=")
    assert plans.converged
    (found,) = torch.autograd.grad(plans.dense().square().sum(), stack)
    for k, cost in enumerate(costs):
        alone = cost.clone().requires_grad_()
        plan = tc.ot.sinkhorn(alone, 0.3, n_iters=n_iters)
        part = plans.dense()[k, : len(cost), : cost.shape[1]]
        assert torch.allclose(part, plan.dense(), rtol=0, atol=1e-13)
        (wanted,) = torch.autograd.grad(plan.dense().square().sum(), alone)
        assert torch.allclose(found[k, : len(cost), : cost.shape[1]], wanted, atol=1e-12)
    assert not plans.dense()[~mask].any()
    stopped = tc.ot.sinkhorn(stack, 0.3, mask=mask, n_iters=500, tol=1e-6, anti=True)
    assert 1 < stopped.n_iters < 500
    assert stopped.marginal_error < 1e-6
    one = tc.ot.sinkhorn(stack[0], 0.3, mask=mask[0], n_iters=n_iters).dense()
    assert torch.allclose(one, plans.dense()[0], atol=1e-13)


X = draw(6, 0)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: tc.match_bags(X, X, ([5] * 4 + [8] * 2, [5] * 3 + [8] * 3)), "bag 5 has 4 images"),
        (lambda: tc.match_bags(X, X[:5], ([5] * 6, [5] * 5)), "bag 5 .* 5 texts: .*orphans"),
        (lambda: tc.match_bags(X, X, [0] * 5), r"bags of images must hold .* \(6,\), got \(5,\)"),
        (lambda: tc.match_bags(X, X[:, :3], [0] * 6), "texts have 3 dimensions, images 5"),
        (lambda: tc.match_bags(X, 0 * X, [0] * 6), "texts must not hold zero vectors"),
        (lambda: tc.match_bags(X / 0, X, [0] * 6), "images must be finite"),
        (lambda: tc.match_bags(X, X, [0] * 6, orphans=1.0), "orphans must be at least 0 and below"),
        (lambda: tc.match_bags(X, X, [0] * 6, sharpness=0), "sharpness must be finite and > 0"),
        (lambda: tc.ot.sinkhorn(-X, 0.1, mask=X < 9, row_marginal=X[:, 0]), "row_marginal must be"),
        (lambda: tc.ot.sinkhorn(X, 0.1, mask=X), r"mask must be bool of shape \(6, 5\)"),
        (lambda: tc.ot.sinkhorn(X, 0.1, mask=X[:2] > 0), r"mask must be .* shape \(2, 5\)"),
        (lambda: tc.ot.sinkhorn(X[None], 0.1, gradient="implicit"), "gradient=.unrolled. alone"),
        (lambda: tc.ot.sinkhorn(X[None], 0.1, row_marginal=X[0]), r"row_marginal .*shape \(1, 6\)"),
        (lambda: tc.class_weights([-1, 0]), "labels must be integers from 0 on"),
        (lambda: tc.class_weights([]), "labels must be integers from 0 on"),
    ],
)
def test_bad_bags_and_stacks_are_named(call, found):
    with pytest.raises(ValueError, match=found):
        call()
