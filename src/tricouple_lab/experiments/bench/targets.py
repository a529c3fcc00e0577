"""What the measurements say: tables, growth exponents, ratios, and each target met or missed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from tricouple_lab.experiments.bench.contenders import (
    CLIP,
    GATHERED,
    HARD,
    LOSS,
    OURS,
    PAIR_PLAN,
    TRIPLET_PLAN,
)
from tricouple_lab.experiments.bench.machines import shared_tables
from tricouple_lab.experiments.bench.measure import Measurement, Report
from tricouple_lab.experiments.bench.problem import BASELINE, AnyStep, Problem
from tricouple_lab.report.numbers import listing, number
from tricouple_lab.report.tables import Table, to_markdown

LOG_SIGMOID, HINGE, STREAMED = (f"{OURS} {way}" for way in ("log-sigmoid", "hinge", "streamed"))
SUP_CON, UNROLLED = "SupConLoss (PML)", "MMSinkhorn unrolled (OTT-JAX)"
HARD_SIZE, LARGE, HUGE = 2048, 8192, 32768

# How many times as fast as whom our loss is to be, forward and backward; of MMSinkhorn's ways the
# last is the strictest comparison, with its plan alone.
FASTER = (
    (OURS, UNROLLED, 256, 300),
    (OURS, "MMSinkhorn Danskin (OTT-JAX)", 256, 300),
    (OURS, "MMSinkhorn plan only (OTT-JAX)", 256, 300),
    *((OURS, SUP_CON, size, 1) for size in (256, 1024, 4096)),
    (LOG_SIGMOID, f"{LOG_SIGMOID}, anchor by anchor", 512, 20),
)
# How many times another's time one may take.
SLOWER = (
    *((OURS, "InfoNCE", size, 1.25) for size in (256, 1024, 4096)),
    (LOG_SIGMOID, OURS, 512, 20),
    (HINGE, OURS, 512, 10),
    *((f"{OURS}, {name}", OURS, HARD_SIZE, 10) for name in HARD),
)
# How many N×N float32 matrices what may need at most.
MATRICES = ((OURS, LARGE, 6), (LOG_SIGMOID, 2048, 4), (HINGE, 2048, 4))
STEPS = {OURS: 1.05, LOG_SIGMOID: 1.10, HINGE: 1.10}  # times the step with InfoNCE
# As which power of N what is to grow at most, between which sizes.
GROWTH = (1024, LARGE)
GROWS = (
    (OURS, "time", *GROWTH, 2.1),
    (OURS, "extra memory", *GROWTH, 2.1),
    (LOG_SIGMOID, "time", 512, 2048, 2.2),
    (HINGE, "time", 512, 2048, 2.2),
)
# Over processes: of whose batch, N and d, and how much at most.
SHARED_MEMORY = (OURS, 4, LARGE, 128, 0.40)  # N×N float32 matrices a process
SENT = (OURS, CLIP, 4, LARGE, 512, 0.7)  # times another's bytes for an embedding
AS_FAST_AS_PEERS = (OURS, 2, (4096, LARGE), 1.0)  # times the fastest peer's time

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
    if isinstance(report.problem, Problem):
        return list((shared_claims if report.shared else own_claims)(report))
    return list(step_claims(report, report.problem))


def own_claims(report: Report) -> Iterator[Claim]:
    """Claims about losses in one process."""
    for ours, peer, size, least in FASTER:
        if ratio := report.ratio(peer, ours, size):
            text = f"{ours} is {number(ratio)}× as fast as {peer} at N={size}"
            yield Claim(text, f"at least {least}×", ratio >= least)
    for ours, what, smallest, largest, most in GROWS:
        if slope := growth(report, ours, what, smallest, largest):
            text = f"{ours}: {what} grows as N^{slope:.2f} from N={smallest} to {largest}"
            yield Claim(text, f"exponent at most {most}", slope <= most)
    for name, peer, size, most in SLOWER:
        if ratio := report.ratio(name, peer, size):
            text = f"{name} takes {number(ratio)}× the time of {peer} at N={size}"
            yield Claim(text, f"at most {most}×", ratio <= most)
    for name, size, most in MATRICES:
        weighed = report.find(name, size)
        if weighed and (matrices := weighed.extra_matrices):
            text = f"{name} needs {matrices:.2f} N×N float32 matrices at N={size}"
            yield Claim(text, f"at most {most}", matrices <= most)
    stored, streamed = report.find(OURS, LARGE), report.find(STREAMED, HUGE)
    if stored and stored.peak_bytes:
        peak = stored.peak_bytes / 2**30
        text = f"{OURS}: the whole process peaks at {peak:.2f} GiB at N={LARGE}"
        yield Claim(text, "below 3 GiB", peak < 3)
    if streamed and streamed.extra_bytes:
        extra = streamed.extra_bytes / 2**30
        text = f"{STREAMED} needs {extra:.2f} GiB of extra memory at N={HUGE}"
        yield Claim(text, "below 1.5 GiB", extra < 1.5)
    if streamed and stored and streamed.seconds and stored.seconds:
        ratio = streamed.seconds / stored.seconds * (LARGE / HUGE) ** 2
        text = f"{STREAMED} at N={HUGE} takes {ratio:.2f}× the time per pair of {OURS} at N={LARGE}"
        yield Claim(text, "at most 8×", ratio <= 8)


def step_claims(report: Report, step: AnyStep) -> Iterator[Claim]:
    """Claims about whole training steps, of which a loss is a small part."""
    for name, most in STEPS.items():
        if ratio := report.ratio(name, BASELINE, step.batch_size):
            text = f"a {step} with {name} takes {ratio:.3f}× {BASELINE}'s"
            yield Claim(text, f"at most {most:.2f}×", ratio <= most)


def shared_claims(report: Report) -> Iterator[Claim]:
    """Claims about a batch that several processes share."""
    name, processes, size, dim, most = SHARED_MEMORY
    for row in report.over(processes, size, dim):
        if row.contender == name and row.extra_matrices:
            needs = f"{row.extra_matrices:.2f} N×N float32 matrices a process"
            text = f"{name} over {processes} processes needs {needs} at N={size}, d={row.dim}"
            yield Claim(text, f"at most {most}", row.extra_matrices <= most)
    name, peer, processes, size, dim, share = SENT
    sent = {row.contender: row.sent_bytes for row in report.over(processes, size, dim)}
    if (ours := sent.get(name)) and (theirs := sent.get(peer)):
        ratio = ours / theirs * (2 if GATHERED[peer].pairs else 1)  # it has two sets of N
        text = (
            f"{name} sends {ratio:.2f}× the bytes of {peer} for an embedding, {processes} processes"
        )
        yield Claim(f"{text} at N={size}, d={dim}", f"at most {share}×", ratio <= share)
    name, processes, sizes, slower = AS_FAST_AS_PEERS
    for size in sizes:
        for dim in sorted({row.dim for row in report.over(processes, size) if row.dim}):
            rows = report.over(processes, size, dim)
            best, median = (
                _to_fastest(name, {row.contender: getattr(row, statistic) for row in rows})
                for statistic in ("seconds", "median_seconds")
            )
            if best and median:
                text = (
                    f"{name} takes {best[0]:.2f}× the time of {best[1]}, the fastest gathered peer"
                )
                where = f"over {processes} processes at N={size}, d={dim}"
                both = f"{text} (by medians {median[0]:.2f}×), {where}"
                yield Claim(both, f"at most {slower:g}×", best[0] <= slower)


def _to_fastest(name: str, times: Mapping[str, float | None]) -> tuple[float, str] | None:
    """A loss's time in that of the fastest of other libraries, and which that is."""
    peers = {other: time for other, time in times.items() if time and GATHERED[other].module}
    if not (peers and (own := times.get(name))):
        return None
    fastest = min(peers, key=peers.__getitem__)
    return own / peers[fastest], fastest


def growth(report: Report, contender: str, what: str, smallest: int, largest: int) -> float | None:
    """Return the power of N that a contender's "time" or "extra memory" grows with.

    None if one of the two sizes was not measured: it would not be this range.
    """
    field = {"time": "seconds", "extra memory": "extra_bytes"}[what]
    rows = (row for row in report.measurements if row.contender == contender)
    points = {row.size: getattr(row, field) for row in rows if getattr(row, field)}
    if smallest not in points or largest not in points:
        return None
    return exponent({n: value for n, value in points.items() if smallest <= n <= largest})


def exponent(values: Mapping[int, float]) -> float:
    """Return the slope of log value against log size by least squares."""
    sizes, found = ([math.log(x) for x in xs] for xs in (values.keys(), values.values()))
    return linear_regression(sizes, found).slope


def tables(report: Report) -> list[Table]:
    """Return the times of each task, with a row a contender, and how they and memory grow."""
    if report.shared:
        return shared_tables(report)
    if not isinstance(report.problem, Problem):
        return [step_table(report)]
    found = [times_table(report, task, report.sizes()) for task in CAPTIONS]
    return [table for table in (*found, growth_table(report)) if table.rows]


def times_table(report: Report, task: str, sizes: Sequence[int], *, memory: bool = False) -> Table:
    """Return the times of one task with a column a size, and on request one of memory."""
    found = [row for row in report.measurements if row.task == task]
    rows = []
    for name in dict.fromkeys(row.contender for row in found):
        times = (_time(report.find(name, size)) for size in sizes)
        rows.append((name, *times, *([_memory(report.largest_weighed(name))] if memory else [])))
    missing = {f"{row.contender}: {row.note}" for row in found if row.note}
    head = ("N =", *map(str, sizes), *(["extra memory"] if memory else []))
    return Table(CAPTIONS[task], head, rows, note="; ".join(sorted(missing)))


def growth_table(report: Report) -> Table:
    """Return growth exponents, and the extra memory at the largest size it was measured at."""
    rows = []
    for name in dict.fromkeys(row.contender for row in report.measurements):
        slopes = [growth(report, name, what, *GROWTH) for what in ("time", "extra memory")]
        found = report.largest_weighed(name)
        if found is not None or any(slopes):
            shown = ("–" if slope is None else f"{slope:.2f}" for slope in slopes)
            rows.append((name, *shown, _memory(found)))
    caption = "Growth as N^… from {} to {}, and extra memory".format(*GROWTH)
    return Table(caption, ("", "time", "memory", "extra memory"), rows)


def step_table(report: Report) -> Table:
    """Return the times of whole training steps."""
    rows = []
    for row in report.measurements:
        values = row.seconds or math.nan, row.median_seconds or math.nan
        ratio = report.ratio(row.contender, BASELINE, row.size) or math.nan
        rows.append((row.contender, *(f"{1e3 * v:.1f}" for v in values), f"{ratio:.3f}"))
    head = ("loss", "best, ms", "median, ms", f"× {BASELINE}")
    return Table(f"Training: a {report.problem}", head, rows)


def claims_table(found: Sequence[Claim]) -> Table:
    """Return the claims with their targets, met or missed."""
    rows = [(claim.text, claim.target, "yes" if claim.met else "no") for claim in found]
    kinds = {(row, 2): "holds" if claim.met else "fails" for row, claim in enumerate(found)}
    return Table("Targets", ("measured", "target", "met"), rows, words=3, kinds=kinds)


def short_section(report: Report) -> str:
    """Return Markdown for a README: the losses beside their peers, ratios, conditions."""
    if report.shared or not isinstance(report.problem, Problem):
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
    """Put a run, of a file of this name, between the markers of a text.

    ``<!-- bench -->`` and ``<!-- /bench -->`` stand around the place of a short section,
    ``<!-- bench NAME -->`` and ``<!-- /bench NAME -->`` around that of a whole one.

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
    date = facts["date"][:10]
    if not isinstance(problem, Problem):
        return f"{machine}; best of {problem.rounds} interleaved rounds on {date}."
    setup = (
        f"{problem.classes} unbalanced classes, τ = {problem.temperature:g}, "
        f"ε = {problem.epsilon:g}, {problem.n_iters} sweeps"
    )
    rounds = "best of interleaved rounds"
    if report.shared:
        return f"{machine}, {setup}, gloo; {rounds} of the slowest process on {date}."
    return (
        f"{machine}, d = {problem.dim}, {setup}; {rounds} on {date}; extra memory in a process of "
        "its own, in N×N float32 matrices."
    )


def _time(row: Measurement | None) -> str:
    """A time in ms."""
    return number(1e3 * row.seconds) if row and row.seconds else "–"


def _memory(row: Measurement | None) -> str:
    """The extra memory in matrices, and the size at which it was measured."""
    return f"{number(row.extra_matrices)} N² at {row.size}" if row and row.extra_matrices else "–"
