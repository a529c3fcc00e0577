"""Shuffled bags with trained heads: the plan of a bag as soft target, against other targets.

Linear heads start at CCA on the known pairs. A step takes whole bags and some known pairs; the
target of a bag comes from the present heads, without a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from studies.bags import Bags, Maps, Pairs, draw_bags, load, matching, posterior, recovered
from studies.linear import cca, cosine
from studies.study import Plan, Runs, choose_and_run

UNTRAINED = "known pairs only"
READ_OUT = {"MIL-NCE": "row softmax", "known pairs, trained": "row softmax"}  # others: their own


def run(plan: Plan, runs: Runs) -> None:
    """All cells: c and learning rate of each row by validation recall@1, then the final seeds."""
    pairs, settings = load(plan["use"], plan, runs)
    for name, cell in plan["cells"].items():
        for row in plan["rows"]:
            options = {"c": plan["sharpness"], "learning_rate": plan["learning_rates"]}

            def measure(config: Mapping[str, Any], part: str) -> dict[str, float]:
                return measured(pairs, settings, plan, cell, config, part)

            base, options = {"cell": name, "row": row}, options if row != UNTRAINED else {}
            choose_and_run(runs, base, options, measure, "validation recall@1")


def measured(
    pairs: Pairs,
    settings: Mapping[str, Any],
    plan: Plan,
    cell: Mapping[str, Any],
    config: Mapping[str, Any],
    part: str,
) -> dict[str, float]:
    """Pairs recovered and recall, in percent; of test data in the part "final" alone."""
    row = config["row"]
    bags = draw_bags(pairs, cell, config["seed"])
    known = pairs.x[bags.known].T @ pairs.y[bags.known]
    maps = cca(known, settings["rank"], settings["power"])
    if row != UNTRAINED:
        maps = train(pairs, bags, maps, config, plan["steps"], plan["bag_samples"])
    s = cosine(pairs.x[bags.images] @ maps[0], pairs.y[bags.texts] @ maps[1])
    q = posterior(READ_OUT.get(row, row), s, config["c"], bags.true()) if "c" in config else s
    found = {
        "pairs": recovered(q, bags.true()),
        "pairs, matching": recovered(matching(s), bags.true()),
    }
    for name in ("validation", "test") if part == "final" else ("validation",):
        found |= pairs.score(maps, name)
    return found


def train(
    pairs: Pairs, bags: Bags, maps: Maps, config: Mapping[str, Any], steps: int, samples: int
) -> Maps:
    """Heads after some steps of AdamW: ``samples`` images in bags and 64 known pairs a step."""
    row, c = config["row"], config["c"]
    generator = torch.Generator().manual_seed(config["seed"])
    heads = [nn.Parameter(part.clone()) for part in maps]
    optimizer = torch.optim.AdamW(heads, lr=config["learning_rate"], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    criterion, size = tc.InfoNCE(sharpness=c), bags.images.shape[1]
    n_bags = 0 if row == "known pairs, trained" else max(1, samples // size)
    for _ in range(steps):
        chosen = torch.randperm(len(bags.images), generator=generator)[:n_bags]
        some = bags.known[torch.randperm(len(bags.known), generator=generator)[:64]]
        x = pairs.x[torch.cat([bags.images[chosen].flatten(), some])] @ heads[0]
        y = pairs.y[torch.cat([bags.texts[chosen].flatten(), some])] @ heads[1]
        there, back = targets(row, x.detach(), y.detach(), bags.true()[chosen], c)
        if row == "MIL-NCE":
            loss = (mil_nce(x, y, there, c) + mil_nce(y, x, back, c)) / 2
        else:
            to_texts = criterion(x, ref_emb=y, pairs=there)
            loss = (to_texts + criterion(y, ref_emb=x, pairs=back)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return heads[0].detach(), heads[1].detach()


def targets(row: str, x: Tensor, y: Tensor, true: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Weights (N, N) of image → text and text → image: bags first, then known pairs."""
    n_bags, size, _ = true.shape
    inside, n = n_bags * size, len(x)
    there, back = torch.eye(n), torch.eye(n)
    if not inside:
        return there, back
    if row == "plan":
        of_bag = torch.arange(n_bags).repeat_interleave(size)
        there[:inside, :inside] = tc.match_bags(x[:inside], y[:inside], of_bag, sharpness=c)
        return there, there.T
    shape = n_bags, size, -1
    s = cosine(x[:inside].view(shape), y[:inside].view(shape))
    name = "uniform" if row == "MIL-NCE" else row
    q, r = posterior(name, s, c, true), posterior(name, s.mT, c, true.mT)
    there[:inside, :inside] = torch.block_diag(*q)
    back[:inside, :inside] = torch.block_diag(*r)
    return there, back


def mil_nce(anchors: Tensor, references: Tensor, weights: Tensor, c: float) -> Tensor:
    """−log of the share of exp(c s_ij) on the candidates of anchor i (Miech and others 2020)."""
    scores = c * normalize(anchors, dim=1) @ normalize(references, dim=1).T
    candidates = scores.masked_fill(weights == 0, -torch.inf)
    return (scores.logsumexp(1) - candidates.logsumexp(1)).mean()
