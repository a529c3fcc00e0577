"""A synthetic study: the collapse of classes in training, spectra, claims, swept settings."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import neg, pos

import numpy as np

from tricouple_lab.names import QUANTITIES, SHAPINGS
from tricouple_lab.report import curves, embeddings, page, sweeps
from tricouple_lab.report.chart import Axis, Chart, Panel
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.groups import Curve, Group, by_place, gaps, one_seed, steps_of
from tricouple_lab.report.numbers import LEVEL, best, beyond_spread, listing, mean_std, number
from tricouple_lab.report.read import Study
from tricouple_lab.report.sweeps import Sweep, choice, read_sweeps, verdict, verdicts
from tricouple_lab.report.tables import Badness, Column, Table, measured_table, to_html

LEAD = (
    "Encoders trained on a mixture of Gaussians, with each loss under the same conditions. The "
    "question is the paper's: do negatives make the classes collapse to the simplex ETF, K "
    "directions as far apart as can be, while losses without them collapse into few dimensions?"
)
PANELS = ("nc1", "nc2_std", "nc2_deviation", "effective_rank")
CURVES = (
    "Lines are means over seeds, bands ± one standard deviation (cut at the smallest seed). Both "
    "forms of NC2 are zero at the simplex ETF, NC1 is zero when every class has shrunk to a point. "
    "The effective rank counts the directions that the embeddings use: K − 1 for a perfect ETF."
)
SPECTRA = (
    "Eigenvalues of the covariance of the centred class means, sorted, each over the largest one; "
    "means over seeds with a band of ± one standard deviation. A flat line is a simplex ETF: all "
    "K − 1 directions used alike. A steep fall is dimensional collapse."
)
SHARPNESS = (
    "c is the sharpness of a loss: 1/(τε), 1/ε for IOT, 1/τ for InfoNCE; BYOL, VICReg have none. "
    "Losses are best compared at the same c."
)
FINALS = (
    "c is the sharpness 1/(τε), 1/τ for InfoNCE. Bold: best of its column (lowest NC1 and NC2, "
    "highest α, directions and k-NN accuracy, β nearest to its target). An effective rank has no "
    "best: noise raises it too."
)
DRAWN = (embeddings.tsne_chart, embeddings.circle_chart, embeddings.movie_chart)
FLOOR = 1e-6  # of the largest eigenvalue; how empty an empty direction is says nothing


def article(study: Study) -> page.Article:
    """Return everything the page says about one study."""
    groups, swept = main_groups(study), read_sweeps(study)
    # Before a run has finished there is no final figure, and no claim can be tested.
    done = groups if any(own.finished for own in groups) else ()
    findings = check_claims(done) if done else ()
    pictures = embeddings.read_pictures(study, groups)
    told: list[page.Part] = [claims_table(findings), *_unsupported(findings)]
    maps = sweeps.sweeps_html(swept) if swept else ""
    meanings = page.items(_meanings(study, study.verdicts)) if study.verdicts else ""
    classes = sorted({own.config["n_classes"] for own in groups})
    used = {own.config.get("shaping") for own in groups}
    return page.Article(
        title=f"Synthetic study: {study.name}",
        lead=LEAD,
        sections=[
            # The numbers come right after the figures that they summarise.
            *page.chart_sections([curves_chart(groups), spectra_chart(groups)]),
            page.section(
                "finals", "Final figures", *finals_tables(done), page.paragraph(FINALS, "quiet")
            ),
            page.section("claims", "The paper's claims", *told),
            *page.chart_sections(draw(pictures) for draw in DRAWN),
            page.Section("maps", "Where each method ends up", maps),
            page.Section("verdicts", "What the verdicts mean", meanings),
        ],
        found=headline(groups, findings, swept),
        missing=gaps(study, groups, everywhere=True),
        left_out=list(_left_out(study, swept)) if study.runs else [],
        choices={
            "n_classes": ("Classes K", {str(k): str(k) for k in classes}),
            "shaping": ("Cost ψ", {k: v for k, v in SHAPINGS.items() if k in used}),
        },
    )


def _left_out(study: Study, swept: Sequence[Sweep]) -> Iterator[str]:
    if not (study.folder / "snapshots").is_dir():
        yield "There are no snapshots: no pictures of the embeddings."
    if not swept:
        yield "No setting was swept: no maps."


def _meanings(study: Study, given: Container[str | None]) -> list[str]:
    return [f"{verdict(v)}: {text}." for v, text in study.verdicts.items() if v in given]


def files(study: Study) -> page.Files:
    """What the documentation shows: pictures of linear ψ (and losses without ψ), and the table."""
    groups = main_groups(study)
    usual = {"shaping": "linear", "n_classes": str(groups[0].config["n_classes"])} if groups else {}
    shown = curves_chart(groups).chosen(usual)
    first = replace(shown, panels=[
        replace(panel, y=replace(panel.y, title=f"K = {usual['n_classes']}" if not place else ""))
        for place, panel in enumerate(shown.panels[:3])
    ])  # fmt: skip
    spectra = spectra_chart(groups).chosen({"shaping": "linear"})
    return {
        "synthetic-curves.png": png(first),
        "synthetic-spectra.png": png(spectra),
        "synthetic-map.png": png(sweeps.map_chart(read_sweeps(study)), columns=2, height=1.9),
        "synthetic-table.md": [*finals_tables(groups), FINALS, ""],
    }


def terminal(study: Study) -> list[Table | str]:
    """What 80 characters hold of the figures, the claims and the maps; what the verdicts mean."""
    groups = main_groups(study)
    columns = ("method", "c", "NC1", "NC2 deviation", "directions", "k-NN", "verdict")
    tables = [table.narrow(*columns, note=SHARPNESS) for table in finals_tables(groups)]
    if any(own.finished for own in groups):
        table = claims_table(check_claims(groups))
        tables.append(table.narrow("the paper says", "here", "comparisons for it", "factor"))
    swept = [sweep for sweep in read_sweeps(study) if sweep.judged]
    tables += [sweeps.verdict_table(sweep, words=False).narrow() for sweep in swept]
    return [*tables, *_meanings(study, {run.verdict for run in study.runs})]


def main_groups(study: Study) -> tuple[Group, ...]:
    """The comparison of all methods at each K."""
    return sweeps.groups_of(study.part("main"))


def curves_chart(groups: Sequence[Group]) -> Chart:
    """Neural collapse over training; K and ψ are chosen in the page."""
    rows = [
        (str(own.config["n_classes"]), own.name, own.c,
         *(f"{mean_std(own.first(n))} → {mean_std(own.last(n))}" for n in PANELS))
        for own in groups
        if own.finished
    ]  # fmt: skip
    head = ("K", "method", "c", *(QUANTITIES[name] for name in PANELS))
    caption = f"First and last recorded values, finished runs, {steps_of(groups)}"
    panels = curves.during_training(groups, PANELS, choice, x="step")
    numbers = Table(caption, head, rows, words=2)
    return Chart("curves", "Neural collapse during training", CURVES, panels, [numbers])


def spectrum(own: Group) -> Curve:
    """Eigenvalues over the largest one, by position from 1."""
    spectra = [run.spectrum for run in own.shown if len(run.spectrum)]
    shares = [values / values[0] if values[0] > 0 else 0 * values for values in spectra]
    return Curve.over([dict(enumerate(values, 1)) for values in shares])


def spectra_chart(groups: Sequence[Group]) -> Chart:
    """Spectra of the class-mean covariance at the end, one panel for each K."""
    measured = [own for own in groups if any(len(run.spectrum) for run in own.shown)]
    panels, rows = [], []
    for place, here in by_place(measured).items():
        lines, ends, lowest = [], [], 1.0
        for own in here:
            curve = spectrum(own)
            when = {key: value for key, value in choice(own).items() if key == "shaping"}
            lines.append(curves.band_line(own, curve, when))
            ends.append(f"{own.name}: smallest eigenvalue {number(curve.end)} of the largest")
            lowest = min([lowest, *curve.low[curve.low > 0]])
            rows.append((
                str(own.config["n_classes"]), own.name, own.c,
                f"{mean_std(own.last('directions'))} of {own.config['n_classes'] - 1}",
                number(float(np.median(curve.mean))), number(curve.end),
            ))  # fmt: skip
        # Never less than a decade: a flat spectrum should look flat.
        bottom = min(max(lowest, FLOOR), 0.1) / 1.25
        panels.append(
            Panel(
                place,
                f"Class-mean spectra at {place}. {'; '.join(ends)}.",
                lines,
                x=Axis("eigenvalue, from the largest", whole=True),
                y=Axis("share of the largest", log=True, limits=(bottom, 1.25)),
            )
        )
    head = ("K", "method", "c", "directions filled", "median share", "smallest share")
    caption = f"What the spectra come down to after {steps_of(measured)}"
    numbers = Table(caption, head, rows, words=2)
    return Chart("spectra", "Spectrum of the class means", SPECTRA, panels, [numbers])


def finals_tables(groups: Sequence[Group]) -> list[Table]:
    """Final figures, mean ± std over seeds, beside the target of the theory; one for each K."""
    return list(map(_finals, by_place(groups).values()))


def _finals(groups: list[Group]) -> Table:
    n_classes = groups[0].config["n_classes"]
    beta, top = -1 / (n_classes - 1), number(n_classes - 1.0)
    badness: dict[str, Badness | None] = {
        "nc1": pos, "nc2_std": pos, "nc2_deviation": pos, "alpha": neg,
        "beta": lambda value: abs(value - beta), "directions": neg, "knn": neg,
        "effective_rank": None,
    }  # fmt: skip
    columns = [
        Column(curves.SHORT[name], [own.last(name) for own in groups], bad)
        for name, bad in badness.items()
    ]
    caption = f"Final figures at K = {n_classes} after {steps_of(groups)}, mean ± std over seeds"
    names = [(own.name, own.c) for own in groups]
    table = measured_table(caption, ("method", "c"), names, columns)
    target = ("simplex ETF (target)", "", "0", "0", "0", "1", number(beta), top, "–", top, "", "")
    rows = [
        (*row, sweeps.majority(verdicts(own)), _seeds(own))
        for row, own in zip(table.rows, groups, strict=True)
    ]
    return replace(table, head=(*table.head, "verdict", "seeds"), rows=(*rows, target))


def _seeds(own: Group) -> str:
    """How many seeds finished, and what became of the others."""
    others = [
        f"{count} {status}"
        for status in ("diverged", "partial")
        if (count := sum(run.status == status for run in own.runs))
    ]
    return f"{len(own.finished)}" + (f" ({', '.join(others)})" if others else "")


def headline(
    groups: Sequence[Group], findings: Sequence[Finding], swept: Sequence[Sweep]
) -> list[str]:
    """What was found; nothing if no run has finished."""
    usual = [g for g in groups if g.config.get("shaping") in (None, "linear") and g.finished]
    leads = {
        "nc2_deviation": "Closest to the simplex ETF (NC2 deviation)",
        "nc1": "Tightest classes (NC1)",
        "directions": "Richest class means (directions filled, of K − 1)",
    }
    compared: list[str] = []
    for name, lead in leads.items():
        values = {p: {g.name: g.last(name) for g in own} for p, own in by_place(usual).items()}
        compared += best(lead, values, mean_std, less=name != "directions")
    return [
        *_outcomes(usual),
        *compared,
        *([LEVEL] if compared else []),
        *claims_sentence(findings),
        *sweeps.sweeps_sentence(swept),
        *one_seed(usual),
    ]


def _outcomes(groups: Sequence[Group]) -> Iterator[str]:
    """Which methods got which verdict; values of K with the same answer share a clause."""
    clauses: dict[str, list[str]] = {}
    for here in by_place(groups).values():
        names: dict[str, list[str]] = {}
        for own in here:
            for name, count in verdicts(own).most_common(1):
                total = verdicts(own).total()
                several = "" if count == total else f" ({count} of {total} seeds)"
                names.setdefault(name, []).append(own.short_name + several)
        order = sorted(names, key=lambda name: [*sweeps.VERDICTS, name].index(name))
        text = "; ".join(f"{verdict(name).word}: {listing(names[name])}" for name in order)
        if text:
            clauses.setdefault(text, []).append(str(here[0].config["n_classes"]))
    if clauses:
        parts = [f"{text} (K = {listing(classes)})" for text, classes in clauses.items()]
        yield f"The study's verdicts: {'. '.join(parts)}."


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
    """One of our methods against another one at one K."""

    words: str
    outcome: int  # −1 against the claim, 0 level, 1 for it
    factor: float  # how many times the smaller mean the larger one is


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
        factors = [each.factor for each in self.comparisons if each.outcome == 1]
        ends = dict.fromkeys(map(number, (min(factors), max(factors)))) if factors else ()
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
                    low, high = sorted((value.mean, other.mean))
                    yield Comparison(words, outcome, high / low if low > 0 else math.inf)


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


def _unsupported(findings: Sequence[Finding]) -> Iterator[str]:
    """Every comparison that does not support a claim."""
    against = [
        (f.claim.words, c.words, "level" if c.outcome == 0 else "the other way")
        for f in findings
        for c in f.comparisons
        if c.outcome != 1
    ]
    if against:
        table = Table("Where it is not so", ("claim", "measured", "outcome"), against, words=3)
        summary = f"Comparisons that do not support a claim: {len(against)}"
        yield f"<details><summary>{summary}</summary>{to_html(table)}</details>"


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
