"""What an image-text study found, in sentences; which losses do not beat guessing, and why."""

from __future__ import annotations

from tricouple.report.clip.groups import Group
from tricouple.report.clip.tables import DIRECTIONS
from tricouple.report.read import Study
from tricouple.report.statistics import beyond_spread
from tricouple.report.words import listing, mean_std

CLEARLY = 2.0  # times chance, the spread over seeds taken off
REASONS = {
    "dbot_published": (
        "its public code takes the plan, numbers between 0 and 1, for logits: a second softmax "
        "flattens the loss, which hardly moves the encoders"
    ),
    "fused_gromov_published": (
        "its public code has the sign of the kernel flipped, so that its plan is large where "
        "similarities are small, and takes the plan for logits"
    ),
}


def headline(groups: tuple[Group, ...]) -> list[str]:
    """Sentences on the finished losses."""
    done = [own for own in groups if own.finished]
    if not done:
        return []
    found = [_best(done, direction) for direction in DIRECTIONS]
    weak = [text for own in done for text in _weak(own)]
    if not weak and len(done) > 1:
        found.append(
            "Every loss is well above chance in both directions (recall@1 in batches more than "
            f"{CLEARLY:g} times chance, spread over seeds taken off)."
        )
    return [*found, *weak]


def gaps(study: Study, groups: tuple[Group, ...]) -> list[str]:
    """What makes the numbers incomplete, a sentence each."""
    losses = [str(loss) for loss in study.config.get("losses") or []]
    seeds = study.config.get("seeds") or []
    grid = study.config.get("sharpness") or []
    planned = len(losses) * (len(seeds) + len(grid))
    found = []
    if len(study.runs) < planned:
        found.append(f"{len(study.runs)} of {planned} planned runs have been recorded.")
    seen = {own.loss: len(own.finished) for own in groups}
    lacking = [loss for loss in losses if seen.get(loss, 0) < len(seeds)]
    if lacking:
        counts = [f"{loss} ({seen.get(loss, 0)} of {len(seeds)})" for loss in lacking]
        found.append(f"Final runs that are not all there: {listing(counts)}.")
    diverged = [run.id for run in study.runs if run.status == "diverged"]
    if diverged:
        found.append(f"Diverged: {listing(diverged)}.")
    return found


def _best(groups: list[Group], direction: str) -> str:
    name = f"in_batch/{direction}/at1"
    best = max(groups, key=lambda own: own.metric(name).mean)
    value, chance = best.percent(name), best.percent(f"chance/{name}").mean
    text = (
        f"{DIRECTIONS[direction]}: with {best.name} the right answer is the nearest of "
        f"{best.metric('batch_size').mean:.0f} candidates in {mean_std(value)} % of the queries; "
        f"guessing gives {chance:.1f} %."
    )
    if len(groups) == 1:
        return text
    level = [own for own in groups if beyond_spread(own.percent(name), value) == 0]
    close = [own.name for own in level if own is not best]
    if close:
        return f"{text} Within the spread over seeds: {listing(close)}."
    return f"{text} The others are lower by more than the spread over seeds."


def _weak(own: Group) -> list[str]:
    poor = []
    for direction, words in DIRECTIONS.items():
        name = f"in_batch/{direction}/at1"
        value, chance = own.percent(name), own.percent(f"chance/{name}").mean
        if not value.mean - value.spread > CLEARLY * chance:
            poor.append(f"{words} ({mean_std(value)} %, guessing {chance:.1f} %)")
    if not poor:
        return []
    reason = REASONS.get(own.loss)
    if reason is None:
        losses = own.curve("loss").mean
        ends = [value for value in losses if value == value]
        moved = f"from {ends[0]:.3g} to {ends[-1]:.3g}" if len(ends) > 1 else "too little"
        reason = f"within this budget its training loss moved {moved}"
    return [f"{own.name} is not well above chance, {listing(poor)}: {reason}."]
