"""What a vision study does not have (yet): so that a partial page says that it is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tricouple.report.read import Study
from tricouple.report.vision.groups import FINAL, MAIN, SHARPNESS, Group
from tricouple.report.vision.names import DATA, SETTINGS, loss_name
from tricouple.report.words import axis_value, listing


def gaps(study: Study, groups: tuple[Group, ...]) -> list[str]:
    """Return what makes the numbers incomplete, a sentence each; empty for a whole study."""
    if not study.runs:
        return ["No run has been recorded yet."]
    return [*_absent(study), *_unfinished(study), *_unlabelled(study), *_seeds(groups)]


def _absent(study: Study) -> Iterator[str]:
    """Runs that the study is going to have, block by block and loss by loss."""
    plan = study.config
    blocks, losses = _list(plan, "blocks"), _list(plan, "losses")
    sharpness, seeds = _list(plan, "sharpness"), _list(plan, "seeds")
    rates = _list(plan, "learning_rates")
    if not (blocks and losses):
        return
    planned = len(blocks) * len(losses) * (len(sharpness) + len(rates) - 1 + len(seeds))
    if len(study.runs) < planned:
        yield f"{len(study.runs)} of {planned} planned runs have been recorded."
    for block in blocks:
        words = dict(word.split("=", 1) for word in block if "=" in word)
        where = (words.get("data"), words.get("setting"))
        title = f"{DATA.get(str(where[0]), where[0])}, {SETTINGS.get(str(where[1]), where[1])}"
        own = [r for r in study.runs if (r.config.get("data"), r.config.get("setting")) == where]
        if not own:
            yield f"{title}: no run yet."
            continue
        untried, unfinished = [], []
        for loss in losses:
            mine = [run for run in own if run.config.get("loss") == loss]
            tried = [r.config.get("sharpness") for r in mine if r.part == SHARPNESS]
            done = [r.config.get("seed") for r in mine if r.part == FINAL]
            lacking = [axis_value(c) for c in sharpness if c not in tried]
            if lacking:
                untried.append(f"{loss_name(loss)} at c = {listing(lacking)}")
            lacking = [str(seed) for seed in seeds if seed not in done]
            if lacking:
                unfinished.append(f"{loss_name(loss)} (seed {listing(lacking)})")
        if untried:
            yield f"{title}: not yet run: {'; '.join(untried)}."
        if unfinished:
            yield f"{title}: no final accuracy yet of {'; '.join(unfinished)}."


def _unfinished(study: Study) -> Iterator[str]:
    for status, words in (("partial", "did not finish"), ("diverged", "diverged")):
        names = [run.id for run in study.runs if run.status == status]
        if names:
            shown = listing(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            yield f"{len(names)} of {len(study.runs)} runs {words}: {shown}."


def _unlabelled(study: Study) -> Iterator[str]:
    names = [run.id for run in study.runs if run.status == "done" and not run.metrics]
    if names:
        yield f"No accuracy, for lack of labelled images: {listing(names)}."


def _seeds(groups: tuple[Group, ...]) -> Iterator[str]:
    """Seeds that other runs of a folder have, and these have not."""
    everything = {run.config["seed"] for own in groups for run in own.runs if run.part == MAIN}
    for own in groups:
        lacking = sorted(everything - {run.config["seed"] for run in own.runs})
        if lacking and own.runs[0].part == MAIN:
            yield f"{own.name} on {own.block} lacks seed {listing([str(s) for s in lacking])}."


def _list(plan: dict[str, Any], key: str) -> list[Any]:
    value = plan.get(key)
    return value if isinstance(value, list) else []
