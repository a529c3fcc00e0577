"""Shuffled bags with trained heads: the plan of a bag as soft target, against other targets.

Linear heads start at CCA on the known pairs. A step takes whole bags and some known pairs; the
target of a bag comes from the present heads, without a gradient. MIL-NCE (Miech and others 2020),
−log of the share of exp(c s_ij) on the texts of the bag, has the gradient of InfoNCE on the row
softmax, and is trained so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import tricouple as tc
from studies.bags import CHOSEN_BY, UNTRAINED, Bags, Maps, Pairs, load, measure_of, posterior, start
from studies.linear import cosine, descend
from studies.study import Plan, Runs, Stage, run_rows


def run(plan: Plan, runs: Runs) -> None:
    """All cells: c and learning rate of each row by validation recall@1, then the final seeds."""
    pairs, settings = load(plan["use"], plan, runs)
    fit = partial(train, settings=settings, steps=plan["steps"], samples=plan["bag_samples"])
    grid = {"c": plan["sharpness"], "learning_rate": plan["learning_rates"]}
    run_rows(
        plan,
        runs,
        lambda name, cell: measure_of(pairs, cell, fit),
        lambda row, cell: [Stage({} if row == UNTRAINED else grid, CHOSEN_BY)],
    )


def train(
    pairs: Pairs,
    bags: Bags,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    steps: int,
    samples: int,
) -> Maps:
    """Heads after some steps: ``samples`` images in bags and 64 known pairs a step."""
    maps, row = start(pairs, bags, settings)[1], config["row"]
    if row == UNTRAINED:
        return maps
    c, size = config["c"], bags.images.shape[1]
    generator = torch.Generator().manual_seed(config["seed"])
    heads, criterion = [nn.Parameter(part.clone()) for part in maps], tc.InfoNCE(sharpness=c)
    n_bags = 0 if row == "known pairs, trained" else max(1, samples // size)

    def loss() -> Tensor:
        chosen = torch.randperm(len(bags.images), generator=generator)[:n_bags]
        some = bags.known[torch.randperm(len(bags.known), generator=generator)[:64]]
        x = pairs.x[torch.cat([bags.images[chosen].flatten(), some])] @ heads[0]
        y = pairs.y[torch.cat([bags.texts[chosen].flatten(), some])] @ heads[1]
        there, back = targets(row, x.detach(), y.detach(), bags.true()[chosen], c)
        to_texts: Tensor = criterion(x, ref_emb=y, pairs=there)
        return (to_texts + criterion(y, ref_emb=x, pairs=back)) / 2

    descend(heads, steps, config["learning_rate"], loss)
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
    q, r = posterior(row, s, c, true), posterior(row, s.mT, c, true.mT)
    there[:inside, :inside] = torch.block_diag(*q)
    back[:inside, :inside] = torch.block_diag(*r)
    return there, back
