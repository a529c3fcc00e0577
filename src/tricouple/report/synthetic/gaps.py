"""What a study does not have (yet): so that a partial page says that it is one."""

from __future__ import annotations

from collections.abc import Iterator

from tricouple.report.read import Study
from tricouple.report.synthetic.groups import Group
from tricouple.report.synthetic.sweeps import Sweep
from tricouple.report.words import listing, method_name


def gaps(study: Study, groups: tuple[Group, ...]) -> list[str]:
    """Return what makes the numbers incomplete, a sentence each; empty for a whole study."""
    if not study.runs:
        return ["No run has been recorded yet."]
    return [*_absent(study, groups), *_unfinished(study), *_holes(groups), *_mixed(groups)]


def left_out(study: Study, sweeps: tuple[Sweep, ...]) -> Iterator[str]:
    """Say which parts of the page the study never meant to fill."""
    if not (study.folder / "snapshots").is_dir():
        yield "There are no snapshots: no pictures of the embeddings."
    if not sweeps:
        yield "No setting was swept: no maps."


def _absent(study: Study, groups: tuple[Group, ...]) -> Iterator[str]:
    if study.planned is not None and len(study.runs) < study.planned:
        yield f"{len(study.runs)} of {study.planned} planned runs have been recorded."
    if not groups:
        yield "There is no run of the main part: no curves, spectra or tables."


def _unfinished(study: Study) -> Iterator[str]:
    for status, words in (("partial", "did not finish"), ("diverged", "diverged")):
        names = [run.id for run in study.runs if run.status == status]
        if names:
            shown = listing(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            yield f"{len(names)} of {len(study.runs)} runs {words}: {shown}."


def _holes(groups: tuple[Group, ...]) -> Iterator[str]:
    """Cells of the grid (method, ψ) × K × seed that other cells suggest, but nobody ran."""
    classes = {group.n_classes for group in groups}
    seeds = {run.config["seed"] for group in groups for run in group.runs}
    by_method: dict[tuple[str, str | None], dict[int, set[int]]] = {}
    for group in groups:
        ran = by_method.setdefault((group.method, group.shaping), {})
        ran[group.n_classes] = {run.config["seed"] for run in group.runs}
    for (method, shaping), ran in by_method.items():
        name = method_name(method, shaping)
        absent = sorted(classes - set(ran))
        if absent:
            yield f"{name} was not run at K = {listing([str(k) for k in absent])}."
        for n_classes, own in sorted(ran.items()):
            if seeds - own:
                few = listing([str(seed) for seed in sorted(seeds - own)])
                yield f"{name} at K = {n_classes} lacks seed {few}."


def _mixed(groups: tuple[Group, ...]) -> Iterator[str]:
    """Groups whose runs differ in more than the seed: their mean is not one over seeds alone."""
    for group in groups:
        first = group.runs[0].config
        keys = {key for run in group.runs for key in first.keys() | run.config.keys()
                if run.config.get(key) != first.get(key)} - {"seed"}  # fmt: skip
        if keys:
            name = method_name(group.method, group.shaping)
            yield (
                f"The runs of {name} at K = {group.n_classes} differ in {listing(sorted(keys))} "
                "besides the seed and are averaged all the same."
            )
