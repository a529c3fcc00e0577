"""What the paper says about its synthetic study, in our words, held against the numbers here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tricouple.report.statistics import MeanStd, beyond_spread
from tricouple.report.synthetic.groups import Group
from tricouple.report.tables_before import Table, html_table
from tricouple.report.words import QUANTITIES, mean_std, method_name, number

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
    Claim(
        "Losses with negatives shrink the classes much further than IOT does.",
        "main text, synthetic mixture",
        "nc1",
        -1,
        ("iot",),
    ),
    Claim(
        "Training moves their class means towards the simplex ETF.",
        "main text, synthetic mixture",
        "nc2_deviation",
        -1,
        (START,),
    ),
    Claim(
        "They come nearer to the simplex ETF than IOT, BYOL and VICReg.",
        "contributions",
        "nc2_deviation",
        -1,
        ("iot", "byol", "vicreg"),
    ),
    Claim(
        "Their class-mean spectra stay richer than those of the losses without negatives.",
        "main text, synthetic mixture",
        "directions",
        1,
        ("byol", "vicreg"),
    ),
    Claim(
        "They resist dimensional collapse better than IOT.",
        "contributions",
        "directions",
        1,
        ("iot",),
    ),
)


@dataclass(frozen=True)
class Comparison:
    """One of our methods against another one at one K: −1 against the claim, 0 level, 1 for it."""

    ours: Group
    other: str
    value: MeanStd
    other_value: MeanStd
    outcome: int

    def __str__(self) -> str:
        group = self.ours
        other = "its start" if self.other == START else method_name(self.other)
        return (
            f"{method_name(group.method, group.shaping)} at K = {group.n_classes}: "
            f"{mean_std(self.value)}, {other}: {mean_std(self.other_value)}"
        )


@dataclass(frozen=True)
class Finding:
    """A claim with every comparison that the study allows."""

    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """One word: holds, level or fails if it does so everywhere; else mixed or not tested."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        words = {1: "holds", -1: "fails", 0: "level"}
        if not outcomes:
            return "not tested"
        return words[outcomes.pop()] if len(outcomes) == 1 else "mixed"

    @property
    def count(self) -> int:
        """How many comparisons support the claim."""
        return sum(comparison.outcome == 1 for comparison in self.comparisons)


def check(groups: tuple[Group, ...]) -> tuple[Finding, ...]:
    """Hold every claim against the finished runs."""
    return tuple(Finding(claim, tuple(_comparisons(claim, groups))) for claim in CLAIMS)


def claims_table(findings: tuple[Finding, ...]) -> str:
    """Return the claims as a table, and below it every comparison that does not support one."""
    rows = [
        (
            finding.claim.words,
            finding.verdict,
            f"{finding.count} of {len(finding.comparisons)}" if finding.comparisons else "–",
            _factor(finding),
            QUANTITIES[finding.claim.quantity],
            finding.claim.place,
        )
        for finding in findings
    ]
    head = ("the paper says", "here", "comparisons for it", "factor", "measured by", "where")
    notes = {(row, 1): f"words {finding.verdict}" for row, finding in enumerate(findings)}
    caption = "In our words, beside this study"
    table = Table(caption, head, rows, words=len(head), notes=notes)
    rule = f'<p class="quiet">{RULE}</p>'
    return f"{html_table(table)}\n{rule}\n{_exceptions(findings)}"


def _exceptions(findings: tuple[Finding, ...]) -> str:
    rows = [
        (finding.claim.words, str(c), "level" if c.outcome == 0 else "the other way")
        for finding in findings
        for c in finding.comparisons
        if c.outcome != 1
    ]
    if not rows:
        return ""
    table = html_table(Table("Where it is not so", ("claim", "measured", "outcome"), rows, words=3))
    summary = f"Comparisons that do not support a claim: {len(rows)}"
    return f"<details><summary>{summary}</summary>{table}</details>"


def _comparisons(claim: Claim, groups: tuple[Group, ...]) -> Iterator[Comparison]:
    for ours in (group for group in groups if group.method in OURS):
        for other in claim.against:
            value = ours.final(claim.quantity)
            if other == START:
                reference = ours.first(claim.quantity)
            else:
                found = [group for group in groups if _beside(ours, group, other)]
                if not found:
                    continue
                reference = found[0].final(claim.quantity)
            if value.count and reference.count:
                outcome = beyond_spread(value, reference) * claim.sign
                yield Comparison(ours, other, value, reference, outcome)


def _beside(ours: Group, other: Group, method: str) -> bool:
    """Whether `other` is the run of `method` to compare with: same K, and same ψ if it has one."""
    return (
        other.method == method
        and other.n_classes == ours.n_classes
        and other.shaping in (None, ours.shaping)
    )


def _factor(finding: Finding) -> str:
    """How many times better, over the comparisons that support the claim."""
    ratios = []
    for comparison in finding.comparisons:
        if comparison.outcome == 1:
            low, high = sorted((comparison.value.mean, comparison.other_value.mean))
            ratios.append(high / low if low > 0 else float("inf"))
    if not ratios:
        return "–"
    low, high = min(ratios), max(ratios)
    return f"{number(low)}×" if number(low) == number(high) else f"{number(low)} to {number(high)}×"
