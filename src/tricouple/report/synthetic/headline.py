"""What was found, in a few sentences computed from the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tricouple.report.statistics import beyond_spread
from tricouple.report.synthetic.claims import Finding
from tricouple.report.synthetic.groups import Group
from tricouple.report.synthetic.sweeps import Sweep
from tricouple.report.synthetic.verdicts import VERDICTS, verdict
from tricouple.report.words import listing, mean_std, method_name


def headline(
    groups: tuple[Group, ...], findings: tuple[Finding, ...], sweeps: tuple[Sweep, ...]
) -> list[str]:
    """Return the sentences; none if no run has finished."""
    usual = tuple(g for g in groups if g.shaping in (None, "linear") and g.finished)
    return [
        *_outcomes(usual),
        *_extremes(usual, "nc2_deviation", 1, "Closest to the simplex ETF (NC2 deviation)"),
        *_extremes(usual, "nc1", 1, "Tightest classes (NC1)"),
        *_extremes(usual, "directions", -1, "Richest class means (directions filled, of K − 1)"),
        *_claims(findings),
        *_sweeps(sweeps),
        *_one_seed(usual),
    ]


def _one_seed(groups: tuple[Group, ...]) -> Iterator[str]:
    if groups and all(len(group.finished) == 1 for group in groups):
        yield "One seed a setting: small differences may be chance."


def _outcomes(groups: tuple[Group, ...]) -> Iterator[str]:
    """Which methods got which verdict; values of K with the same answer share a clause."""
    clauses: dict[str, list[str]] = {}
    for n_classes in sorted({group.n_classes for group in groups}):
        names: dict[str, list[str]] = {}
        for own in (g for g in groups if g.n_classes == n_classes and g.verdicts):
            (name, count), total = own.verdicts.most_common(1)[0], own.verdicts.total()
            several = "" if count == total else f" ({count} of {total} seeds)"
            names.setdefault(name, []).append(method_name(own.method) + several)
        order = [name for name in VERDICTS if name in names]
        order += [name for name in names if name not in order]
        if order:
            text = "; ".join(f"{verdict(name).word}: {listing(names[name])}" for name in order)
            clauses.setdefault(text, []).append(str(n_classes))
    if clauses:
        parts = [f"{text} (K = {listing(classes)})" for text, classes in clauses.items()]
        yield f"The study's verdicts: {'. '.join(parts)}."


def _extremes(groups: tuple[Group, ...], quantity: str, sign: int, lead: str) -> Iterator[str]:
    """Who is best in a quantity at each K, who is level with it, and who is worst.

    Values of K with the same answer share a clause. `sign` is 1 if less is better, −1 if more is.
    """
    clauses: dict[tuple[str, str, str], list[tuple[Group, Group]]] = {}
    for n_classes in sorted({group.n_classes for group in groups}):
        own = [g for g in groups if g.n_classes == n_classes and g.final(quantity).count]
        if len(own) < 2:
            continue
        own.sort(key=lambda group: sign * group.final(quantity).mean)
        best, worst = own[0], own[-1]
        level = [
            method_name(group.method)
            for group in own[1:]
            if beyond_spread(best.final(quantity), group.final(quantity)) == 0
        ]
        answer = (best.method, listing(level), worst.method)
        clauses.setdefault(answer, []).append((best, worst))
    parts = [_clause(*answer, pairs, quantity) for answer, pairs in clauses.items()]
    if parts:
        yield f"{lead}: {'. '.join(parts)}."


def _clause(
    best: str, level: str, worst: str, pairs: list[tuple[Group, Group]], quantity: str
) -> str:
    classes = listing([str(group.n_classes) for group, _ in pairs])
    highs, lows = (
        listing([mean_std(pair[side].final(quantity)) for pair in pairs]) for side in (0, 1)
    )
    beside = f", level with {level}" if level else ""
    return (
        f"{method_name(best)} at K = {classes} ({highs}){beside}; "
        f"at the other end {method_name(worst)} ({lows})"
    )


def _claims(findings: tuple[Finding, ...]) -> Iterator[str]:
    tested = [finding for finding in findings if finding.comparisons]
    if not tested:
        return
    holds = sum(finding.verdict == "holds" for finding in tested)
    supporting = sum(finding.count for finding in tested)
    total = sum(len(finding.comparisons) for finding in tested)
    yield (
        f"Of {len(tested)} claims of the paper that these runs can test, {holds} "
        f"{'holds' if holds == 1 else 'hold'} in every comparison; "
        f"{supporting} of {total} single comparisons support them."
    )


def _sweeps(sweeps: tuple[Sweep, ...]) -> Iterator[str]:
    """How often each method got each verdict over all swept settings."""
    counts: dict[str, Counter[str]] = {}
    for sweep in sweeps:
        for line in sweep.lines:
            name = method_name(line.method, line.shaping)
            for point in line.points:
                counts.setdefault(name, Counter()).update(point.verdicts)
    parts = [
        f"{name}: " + ", ".join(f"{verdict(v).word} {n}" for v, n in count.most_common())
        for name, count in counts.items()
        if count
    ]
    if parts:
        axes = len(sweeps)
        yield f"Outcomes of runs over {axes} swept setting{'s'[: axes != 1]}: {'; '.join(parts)}."
