"""What was found: sentences that are computed from numbers and name the test they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tricouple.names import QUANTITIES
from tricouple.report.groups import Group
from tricouple.report.numbers import MeanStd, listing, mean_std, number
from tricouple.report.tables import Table, to_html

LEVEL = (
    "“Level”: the means differ by no more than both standard deviations together, or by less than "
    "1 %."
)
SIGNIFICANCE = 0.05


def beyond_spread(a: MeanStd, b: MeanStd) -> int:
    """−1 if `a` lies clearly below `b`, 1 if clearly above, 0 if they are level.

    Level means that their ± std bands touch, or that they differ by less than 1 %: one seed has no
    band, and nobody should make anything of the fourth digit.

    Example:
        >>> beyond_spread(MeanStd(1.0, 0.1, 3), MeanStd(2.0, 0.1, 3))
        -1
    """
    least = max(a.spread + b.spread, 0.01 * max(abs(a.mean), abs(b.mean)))
    if not abs(a.mean - b.mean) > least:
        return 0
    return -1 if a.mean < b.mean else 1


def welch(a: MeanStd, b: MeanStd) -> float:
    """The p-value of Welch's t-test for different means; 1 where there is no spread to judge by.

    Example:
        >>> round(welch(MeanStd(80.71, 2.13, 3), MeanStd(83.04, 1.03, 3)), 2)
        0.19
    """
    if min(a.count, b.count) < 2 or a.mean == b.mean:
        return 1.0
    if a.std == b.std == 0:
        return 0.0
    from scipy.stats import ttest_ind_from_stats

    found = ttest_ind_from_stats(
        a.mean, a.std, a.count, b.mean, b.std, b.count, equal_var=False
    )  # fmt: skip
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number, as Holm does: step down from the smallest.

    Example:
        >>> holm([0.03, 0.01, 0.04])
        [0.06, 0.03, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def best(
    lead: str,
    values: Mapping[str, Mapping[str, MeanStd]],
    write: Callable[[MeanStd], str],
    *,
    less: bool = False,
) -> Iterator[str]:
    """Who is best in each place, who is level with it, who is last, and what a test tells apart.

    `values` are by place and name; places with the same answer share a clause.
    """
    clauses: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    rivals: list[tuple[str, str, float]] = []
    for place, named in values.items():
        own = {name: value for name, value in named.items() if math.isfinite(value.mean)}
        if len(own) < 2:
            continue
        order = sorted(own, key=lambda name: own[name].mean * (1 if less else -1))
        first, *others = order
        level = [name for name in others if beyond_spread(own[first], own[name]) == 0]
        last = "" if order[-1] in level else order[-1]
        answer = (first, listing(level), last)
        ends = (place, write(own[first]), write(own[order[-1]]))
        clauses.setdefault(answer, []).append(ends)
        rivals += [(place, name, welch(own[first], own[name])) for name in others]
    parts = []
    for (first, level_with, last), found in clauses.items():
        places, highs, lows = zip(*found, strict=True)
        where = listing([place for place in places if place])
        beside = f", level with {level_with}" if level_with else ""
        end = f"; last {last} ({listing(lows)})" if last else ""
        text = f"best {first} ({listing(highs)}){beside}{end}"
        parts.append(f"{where}: {text}" if where else text)
    if parts:
        yield f"{lead}. {'. '.join(parts)}.{_told_apart(rivals)}"


def one_seed(groups: Sequence[Group]) -> Iterator[str]:
    """A warning where every setting was run once."""
    done = [own for own in groups if own.finished]
    if done and all(len(own.finished) == 1 for own in done):
        yield "One seed a setting: small differences may be chance."


def _told_apart(rivals: Sequence[tuple[str, str, float]]) -> str:
    """Which differences from the best Welch's test finds, corrected for how many are looked at."""
    if all(p == 1.0 for _, _, p in rivals):  # one seed each: nothing to test
        return ""
    found: dict[str, list[str]] = {}
    for (place, name, _), p in zip(rivals, holm([p for _, _, p in rivals]), strict=True):
        if p < SIGNIFICANCE:
            found.setdefault(place, []).append(name)
    told = "; ".join(
        f"{place}: {listing(n)}" if place else listing(n) for place, n in found.items()
    )
    return (
        f" Told from the best by Welch's t-test at {100 * SIGNIFICANCE:g} %, Holm-corrected over "
        f"{len(rivals)} comparisons: {told or 'none'}."
    )


# --- what the paper says about its synthetic study, held against the numbers here -----------------


RULE = (
    "Each comparison is of one of the two losses with negatives, Neg-MMIOT or PushPull, with one "
    "other at the same K and ψ. It counts if the means differ by more than both standard "
    "deviations together and by more than 1 %; otherwise it is level. “mixed” is a claim that "
    "some comparisons support and others do not. The factor is that of the supporting ones."
)
OURS = ("neg_mmiot", "pushpull")
START = "start"  # compare with the method's own first recorded value


@dataclass(frozen=True)
class Claim:
    """One statement: for `OURS` a quantity is lower (sign −1) or higher (1) than for others."""

    words: str
    place: str
    quantity: str
    sign: int
    against: tuple[str, ...]


CLAIMS = (
    Claim("Losses with negatives shrink the classes much further than IOT does.",
          "main text, synthetic mixture", "nc1", -1, ("iot",)),
    Claim("Training moves their class means towards the simplex ETF.",
          "main text, synthetic mixture", "nc2_deviation", -1, (START,)),
    Claim("They come nearer to the simplex ETF than IOT, BYOL and VICReg.",
          "contributions", "nc2_deviation", -1, ("iot", "byol", "vicreg")),
    Claim("Their class-mean spectra stay richer than those of the losses without negatives.",
          "main text, synthetic mixture", "directions", 1, ("byol", "vicreg")),
    Claim("They resist dimensional collapse better than IOT.",
          "contributions", "directions", 1, ("iot",)),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One of our methods against another one at one K: −1 against the claim, 0 level, 1 for it."""

    words: str
    value: MeanStd
    other: MeanStd
    outcome: int


@dataclass(frozen=True)
class Finding:
    """A claim with every comparison that the study allows."""

    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """One word: holds, level or fails if it does so everywhere; else mixed or not tested."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        if not outcomes:
            return "not tested"
        words = {1: "holds", -1: "fails", 0: "level"}
        return words[outcomes.pop()] if len(outcomes) == 1 else "mixed"

    @property
    def count(self) -> int:
        """How many comparisons support the claim."""
        return sum(comparison.outcome == 1 for comparison in self.comparisons)

    @property
    def factor(self) -> str:
        """How many times better, over the comparisons that support the claim."""
        ratios = []
        for comparison in self.comparisons:
            if comparison.outcome == 1:
                low, high = sorted((comparison.value.mean, comparison.other.mean))
                ratios.append(high / low if low > 0 else math.inf)
        ends = list(dict.fromkeys(map(number, (min(ratios), max(ratios))))) if ratios else []
        return f"{' to '.join(ends)}×" if ends else "–"


def check_claims(groups: Sequence[Group]) -> tuple[Finding, ...]:
    """Hold every claim against the finished runs."""
    return tuple(Finding(claim, tuple(_comparisons(claim, groups))) for claim in CLAIMS)


def _comparisons(claim: Claim, groups: Sequence[Group]) -> Iterator[Comparison]:
    for ours in (own for own in groups if own.loss in OURS):
        shaping = ours.config.get("shaping")
        beside = [
            own
            for own in groups
            if own.place == ours.place and own.config.get("shaping") in (None, shaping)
        ]
        value = ours.last(claim.quantity)
        own_words = f"{ours.name} (c = {ours.c}) at {ours.place}: {mean_std(value)}"
        for loss in claim.against:
            others = {g.short_name: g.last(claim.quantity) for g in beside if g.loss == loss}
            if loss == START:
                others = {"its start": ours.first(claim.quantity)}
            for name, other in others.items():
                if value.count and other.count:
                    words = f"{own_words}, {name}: {mean_std(other)}"
                    outcome = beyond_spread(value, other) * claim.sign
                    yield Comparison(words, value, other, outcome)


def claims_table(findings: Sequence[Finding]) -> Table:
    """What the paper says beside what these runs say."""
    rows = [
        (f.claim.words, f.verdict, f"{f.count} of {len(f.comparisons)}" if f.comparisons else "–",
         f.factor, QUANTITIES[f.claim.quantity], f.claim.place)
        for f in findings
    ]  # fmt: skip
    head = ("the paper says", "here", "comparisons for it", "factor", "measured by", "where")
    kinds = {(row, 1): f"words {finding.verdict}" for row, finding in enumerate(findings)}
    caption = "In our words, beside this study"
    return Table(caption, head, rows, words=len(head), kinds=kinds, note=RULE)


def claims_html(findings: Sequence[Finding]) -> str:
    """The claims as a table, and below it every comparison that does not support one."""
    table = to_html(claims_table(findings))
    against = [
        (f.claim.words, c.words, "level" if c.outcome == 0 else "the other way")
        for f in findings
        for c in f.comparisons
        if c.outcome != 1
    ]
    if not against:
        return table
    other = Table("Where it is not so", ("claim", "measured", "outcome"), against, words=3)
    summary = f"Comparisons that do not support a claim: {len(against)}"
    return f"{table}\n<details><summary>{summary}</summary>{to_html(other)}</details>"


def claims_sentence(findings: Sequence[Finding]) -> Iterator[str]:
    """How many claims hold in every comparison, and how many comparisons support them."""
    tested = [finding for finding in findings if finding.comparisons]
    if tested:
        holds = sum(finding.verdict == "holds" for finding in tested)
        supporting = sum(finding.count for finding in tested)
        total = sum(len(finding.comparisons) for finding in tested)
        yield (
            f"Of {len(tested)} claims of the paper that these runs can test, {holds} "
            f"{'holds' if holds == 1 else 'hold'} in every comparison; "
            f"{supporting} of {total} single comparisons support them."
        )
