"""What the measurements say: tables, growth exponents, ratios, and each target met or missed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from tricouple.experiments.bench.contenders import LOSS, PAIR_PLAN, TRIPLET_PLAN
from tricouple.experiments.bench.measure import Measurement, Report
from tricouple.experiments.bench.problem import Problem
from tricouple.experiments.bench.training import BASELINE
from tricouple.report.numbers import listing, number
from tricouple.report.tables import Table, to_markdown

OURS, LOG_SIGMOID, STREAMED = "NegMMIOT", "NegMMIOT log-sigmoid", "NegMMIOT streamed"
SUP_CON = "SupConLoss (PML)"
UNROLLED, DANSKIN, PLAN_ONLY = (
    f"MMSinkhorn {way} (OTT-JAX)" for way in ("unrolled", "Danskin", "plan only")
)
GROWTH_FROM, GROWTH_TO = 1024, 8192
STREAMED_SIZE = 32768

CAPTIONS = {
    LOSS: "Value and gradient of a loss, best time in ms",
    TRIPLET_PLAN: "Potentials of a triplet plan, best time in ms",
    PAIR_PLAN: "Matrix of a pair plan, best time in ms",
}
# Of a run with more sizes than a page has room for.
README_SIZES = (256, 1024, 4096, 8192)
ROOM = 5


@dataclass(frozen=True)
class Claim:
    """A sentence with a measured number, the target it stands for, and whether it is met."""

    text: str
    target: str
    met: bool


def claims(report: Report) -> list[Claim]:
    """Return all claims for which this report has the measurements."""
    found = [
        faster(report, UNROLLED, 256, 300),
        faster(report, DANSKIN, 256, 300),
        # The strictest comparison: our value and gradient against its plan alone.
        faster(report, PLAN_ONLY, 256, 300),
        *(faster(report, SUP_CON, size, 1) for size in (256, 1024, 4096)),
        grows(report, OURS, "time", GROWTH_FROM, GROWTH_TO, 2.1),
        grows(report, OURS, "extra memory", GROWTH_FROM, GROWTH_TO, 2.1),
        *needs(report),
        faster(report, f"{LOG_SIGMOID}, anchor by anchor", 512, 20, LOG_SIGMOID),
        grows(report, LOG_SIGMOID, "time", 512, 2048, 2.2),
        *streams(report),
        trains(report),
    ]
    return [claim for claim in found if claim is not None]


def faster(report: Report, peer: str, size: int, target: float, ours: str = OURS) -> Claim | None:
    """Compare our loss, forward and backward, with a peer."""
    ratio = report.ratio(peer, ours, size)
    if ratio is None:
        return None
    text = f"{ours} is {number(ratio)}× as fast as {peer} at N={size}"
    return Claim(text, f"at least {target:g}×", ratio >= target)


def grows(
    report: Report, ours: str, what: str, smallest: int, largest: int, target: float
) -> Claim | None:
    """State how time or memory of our loss grows."""
    slope = growth(report, ours, what, smallest, largest)
    if slope is None:
        return None
    text = f"{ours}: {what} grows as N^{slope:.2f} from N={smallest} to {largest}"
    return Claim(text, f"exponent at most {target}", slope <= target)


def needs(report: Report) -> list[Claim]:
    """State what our loss needs at the largest size."""
    found = report.find(OURS, GROWTH_TO)
    if found is None or found.peak_bytes is None or found.extra_matrices is None:
        return []
    matrices, peak = found.extra_matrices, found.peak_bytes / 2**30
    text = f"{OURS} needs {matrices:.2f} N×N float32 matrices at N={GROWTH_TO}"
    whole = f"{OURS}: the whole process peaks at {peak:.2f} GiB at N={GROWTH_TO}"
    return [Claim(text, "at most 6", matrices <= 6), Claim(whole, "below 3 GiB", peak < 3)]


def streams(report: Report) -> list[Claim]:
    """State what doing without N×N matrices costs in time, and saves in memory."""
    claims = []
    streamed, stored = report.find(STREAMED, STREAMED_SIZE), report.find(OURS, GROWTH_TO)
    if streamed is not None and streamed.extra_bytes is not None:
        extra = streamed.extra_bytes / 2**30
        text = f"{STREAMED} needs {extra:.2f} GiB of extra memory at N={STREAMED_SIZE}"
        claims.append(Claim(text, "below 1.5 GiB", extra < 1.5))
    if streamed and stored and streamed.seconds and stored.seconds:
        ratio = streamed.seconds / stored.seconds / (STREAMED_SIZE / GROWTH_TO) ** 2
        text = (
            f"{STREAMED} at N={STREAMED_SIZE} takes {ratio:.2f}× the time per pair of {OURS} at "
            f"N={GROWTH_TO}"
        )
        claims.append(Claim(text, "at most 8×", ratio <= 8))
    return claims


def trains(report: Report) -> Claim | None:
    """Compare a training step with our loss to one with InfoNCE."""
    if isinstance(report.problem, Problem):
        return None
    ratio = report.ratio(OURS, BASELINE, report.problem.batch_size)
    if ratio is None:
        return None
    text = f"a {report.problem} with {OURS} takes {ratio:.3f}× {BASELINE}'s"
    return Claim(text, "at most 1.05×", ratio <= 1.05)


def growth(
    report: Report,
    contender: str,
    what: str,
    smallest: int = GROWTH_FROM,
    largest: int = GROWTH_TO,
) -> float | None:
    """Return the growth exponent of a contender's "time" or "extra memory" between two sizes.

    None if one of the ends was not measured: it would not be this range.
    """
    field = {"time": "seconds", "extra memory": "extra_bytes"}[what]
    points = {
        row.size: value
        for row in report.measurements
        if row.contender == contender
        and smallest <= row.size <= largest
        and (value := getattr(row, field))
    }
    if smallest not in points or largest not in points:
        return None
    return exponent(points)


def exponent(values: Mapping[int, float]) -> float:
    """Return the slope of log value against log size by least squares."""
    sizes, found = ([math.log(x) for x in xs] for xs in (values.keys(), values.values()))
    return linear_regression(sizes, found).slope


def tables(report: Report) -> list[Table]:
    """Return the times of each task, with a row a contender, and how they and memory grow."""
    if not isinstance(report.problem, Problem):
        return [step_table(report)]
    found = [times_table(report, task, report.sizes()) for task in CAPTIONS]
    return [table for table in (*found, growth_table(report)) if table.rows]


def times_table(report: Report, task: str, sizes: Sequence[int], *, memory: bool = False) -> Table:
    """Return the times of one task with a column a size, and on request one of memory."""
    rows = [
        (
            name,
            *(_time(report.find(name, size)) for size in sizes),
            *([_memory(report.largest_weighed(name))] if memory else []),
        )
        for name in report.contenders(task)
    ]
    missing = {
        f"{row.contender}: {row.note}"
        for row in report.measurements
        if row.task == task and row.note
    }
    head = ("N =", *map(str, sizes), *(["extra memory"] if memory else []))
    return Table(CAPTIONS[task], head, rows, note="; ".join(sorted(missing)))


def growth_table(report: Report) -> Table:
    """Return growth exponents, and the extra memory at the largest size it was measured at."""
    rows = []
    for name in dict.fromkeys(row.contender for row in report.measurements):
        slopes = [growth(report, name, what) for what in ("time", "extra memory")]
        found = report.largest_weighed(name)
        if found is not None or any(slopes):
            shown = ("–" if slope is None else f"{slope:.2f}" for slope in slopes)
            rows.append((name, *shown, _memory(found)))
    caption = f"Growth as N^… from {GROWTH_FROM} to {GROWTH_TO}, and extra memory"
    return Table(caption, ("", "time", "memory", "extra memory"), rows)


def step_table(report: Report) -> Table:
    """Return the times of whole training steps."""
    rows = []
    for row in report.measurements:
        assert row.seconds is not None
        assert row.median_seconds is not None
        ratio = report.ratio(row.contender, BASELINE, row.size)
        times = (f"{1e3 * seconds:.1f}" for seconds in (row.seconds, row.median_seconds))
        rows.append((row.contender, *times, "–" if ratio is None else f"{ratio:.3f}"))
    head = ("loss", "best, ms", "median, ms", f"× {BASELINE}")
    return Table(f"Training: a {report.problem}", head, rows)


def claims_table(found: Sequence[Claim]) -> Table:
    """Return the claims with their targets, met or missed."""
    rows = [(claim.text, claim.target, "yes" if claim.met else "no") for claim in found]
    kinds = {(row, 2): "holds" if claim.met else "fails" for row, claim in enumerate(found)}
    return Table("Targets", ("measured", "target", "met"), rows, words=3, kinds=kinds)


def short_section(report: Report) -> str:
    """Return Markdown for a README: the losses beside their peers, ratios, conditions."""
    if not isinstance(report.problem, Problem):
        return full_section(report)
    sizes = report.sizes()
    if len(sizes) > ROOM:
        sizes = tuple(size for size in README_SIZES if size in sizes)
    table = to_markdown(times_table(report, LOSS, sizes, memory=True))
    return "\n".join([table, *(f"{text}\n" for text in ratios(report, sizes)), conditions(report)])


def full_section(report: Report) -> str:
    """Return Markdown with all tables of a run, its targets and its conditions."""
    targets = [
        f"- {claim.text} (target: {claim.target}{'' if claim.met else ', **missed**'})"
        for claim in claims(report)
    ]
    parts = [*map(to_markdown, tables(report)), "\n".join([*targets, ""]), conditions(report)]
    return "\n".join(part for part in parts if part)


def ratios(report: Report, sizes: Sequence[int]) -> list[str]:
    """Say in a sentence how our loss compares: with our own InfoNCE first."""

    def compared(verb: str, one: str, other: str, peer: str) -> str:
        found = {size: ratio for size in sizes if (ratio := report.ratio(one, other, size))}
        times = listing([number(ratio) for ratio in found.values()])
        return f"{verb.format(times)} as {peer} at N = {listing(list(found))}" if found else ""

    parts = [
        compared("takes {} times as long", OURS, BASELINE, f"our own {BASELINE}"),
        *(compared("is {} times as fast", peer, OURS, peer) for peer in (SUP_CON, UNROLLED)),
    ]
    known = [part for part in parts if part]
    return [f"{OURS} {'; it '.join(known)}."] if known else []


def places(text: str, name: str) -> list[str]:
    """Return what the pairs of markers in a text say: ``bench``, ``bench NAME`` or both.

    Raises:
        ValueError: If there is none.
    """
    words = ("bench", f"bench {name}")
    found = [w for w in words if f"<!-- {w} -->" in text and f"<!-- /{w} -->" in text]
    if not found:
        raise ValueError("the markers <!-- bench --> and <!-- /bench --> are missing")
    return found


def insert_into(text: str, report: Report, name: str) -> str:
    """Put a run between the markers of a text.

    Args:
        text: With ``<!-- bench -->`` and ``<!-- /bench -->`` around the place of a short section,
            or with ``<!-- bench NAME -->`` and ``<!-- /bench NAME -->`` around that of a whole one.
        report: The run.
        name: Of its file, without the ending.

    Raises:
        ValueError: If the text has none of these pairs of markers.
    """
    for word in places(text, name):
        section = short_section(report) if word == "bench" else full_section(report)
        before, start, rest = text.partition(f"<!-- {word} -->")
        _, end, after = rest.partition(f"<!-- /{word} -->")
        text = f"{before}{start}\n{section}\n{end}{after}"
    return text


def conditions(report: Report) -> str:
    """Say in one sentence how the numbers were obtained."""
    problem, facts = report.problem, report.provenance
    machine = (
        f"{facts['cores']} cores of {facts['cpu']} (load {facts['load']:.1f} before the run), "
        f"torch {facts['versions']['torch']}, float32"
    )
    if not isinstance(problem, Problem):
        return f"{machine}; best of {problem.rounds} interleaved rounds on {facts['date'][:10]}."
    return (
        f"{machine}, d = {problem.dim}, {problem.classes} unbalanced classes, "
        f"τ = {problem.temperature:g}, ε = {problem.epsilon:g}, {problem.n_iters} sweeps; best of "
        f"interleaved rounds on {facts['date'][:10]}; extra memory in a process of its own, in N×N "
        "float32 matrices."
    )


def _time(measurement: Measurement | None) -> str:
    """Return a time in ms, a dash if there is none."""
    if measurement is None or measurement.seconds is None:
        return "–"
    return number(1e3 * measurement.seconds)


def _memory(measurement: Measurement | None) -> str:
    """Return the extra memory in matrices, and the size at which it was measured."""
    if measurement is None or measurement.extra_matrices is None:
        return "–"
    return f"{number(measurement.extra_matrices)} N² at {measurement.size}"
