"""What the paper says about its synthetic study, in our words, held against the numbers here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tricouple.names import QUANTITIES
from tricouple.report.groups import Group
from tricouple.report.numbers import MeanStd, mean_std, number
from tricouple.report.sentences import beyond_spread
from tricouple.report.tables import Table, to_html

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
