"""Figures and tables of the documentation, drawn from committed results.

``python docs/figures.py results/synthetic results/text … docs/assets``
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from tricouple_lab import names
from tricouple_lab.files import write_text
from tricouple_lab.report.comparison import (
    arrange,
    lines,
    mean_std,
    measurements,
    over_sharpness,
    over_training,
)
from tricouple_lab.report.figures import STYLE, Array, Series, lines_figure, map_figure, save_png
from tricouple_lab.report.frame import frame
from tricouple_lab.report.run_page import title

Drawn = Iterator[tuple[str, Callable[[Path], object]]]  # the name of a file, and what writes it

OUTCOMES = {
    "etf": "★ ETF",
    "rich": "● rich",
    "reduced": "◐ reduced",
    "collapsed": "▼ collapsed",
    "diverged": "✕ diverged",
}
AXES = {
    "epsilon": "ε",
    "temperature": "τ",
    "n_iters": "Sinkhorn iterations",
    "dim": "embedding dimension",
    "kappa": "noise κ",
    "schedule": "learning-rate schedule",
    "imbalance": "class imbalance",
}
NOTE = (
    "Mean ± standard deviation over seeds. Bold: every other row is significantly worse (paired "
    "t-test, 5 %, Holm). c = 1/(τε) is the sharpness, 1/τ for InfoNCE.\n"
)
COLLAPSE = {
    "geometry/nc1": "NC1",
    "geometry/nc2_std": "NC2 std",
    "geometry/nc2_deviation": "NC2 deviation",
    "geometry/alpha": "α",
    "geometry/beta": "β",
    "geometry/directions": "directions",
    "embedding/knn": "k-NN",
    "geometry/effective_rank": "effective rank",
}
TEXT = {
    "embedding/ncm": "nearest class mean",
    "embedding/knn": "k-NN",
    "embedding/linear": "linear probe",
}


def docs_figures(results: Path, assets: Path) -> list[Path]:
    """Write the figures and tables that README and docs show of a folder of results."""
    runs = frame(results)
    order = {key: place for place, key in enumerate(names.LOSSES)}
    runs = runs.reindex(columns=dict.fromkeys([*runs.columns, "loss.sharpness", "loss.shaping"]))
    runs = runs.assign(rank=runs["loss.name"].map(order))
    runs = runs.sort_values(["rank", "loss.sharpness", "seed"], kind="stable", ignore_index=True)
    written = []
    for name, write in DRAW[str(runs["task"].iloc[0])](runs.drop(columns="rank"), results):
        assets.mkdir(parents=True, exist_ok=True)
        write(assets / name)
        written.append(assets / name)
    return written


def draw_mixture(runs: pd.DataFrame, results: Path) -> Drawn:
    """Curves, spectra, the map of settings, and a table for each K."""
    main, _ = arrange(runs[runs["stage"] == "final"])
    linear = main[main["loss.shaping"].isna() | (main["loss.shaping"] == "linear")]
    smallest = linear[linear["data.n_classes"] == linear["data.n_classes"].min()]
    panels = {
        COLLAPSE[key]: over_training(smallest, key, "step")
        for key in ("geometry/nc1", "geometry/nc2_std", "geometry/nc2_deviation")
    }
    curves = lines_figure(panels, "training step", "", log_y=True, width=3.6)
    yield "synthetic-curves.png", partial(save_png, curves)
    spectra = {str(block): spectrum(own) for block, own in linear.groupby("block", sort=True)}
    drawn = lines_figure(spectra, "eigenvalue", "share of the largest", log_y=True, width=3.6)
    yield "synthetic-spectra.png", partial(save_png, drawn)
    stages = {f"maps/{axis}": axis for axis in AXES}
    swept = {stages[name]: own for name, own in runs.groupby("stage") if name in stages}
    maps = {AXES[axis]: cells(swept[axis], axis) for axis in AXES if axis in swept}
    yield "synthetic-map.png", partial(save_png, heat_figure(maps))
    tables = []
    for block, own in main.groupby("block", sort=True):
        texts, bold = measurements(own, list(COLLAPSE))
        texts.columns = bold.columns = pd.Index([*COLLAPSE.values()])
        texts["outcome"] = [majority(one["verdict"]) for _, one in own.groupby("row", sort=False)]
        texts["seeds"] = [str(len(one)) for _, one in own.groupby("row", sort=False)]
        steps = f"{own['steps'].max():.0f}"
        tables.append(f"{block}, after {steps} steps:\n\n{markdown(texts, bold)}")
    text = "\n".join([*tables, f"k-NN accuracy in percent. {NOTE}"])
    yield "synthetic-table.md", lambda path: write_text(path, text)


def spectrum(runs: pd.DataFrame) -> list[Series]:
    """Eigenvalues of the class means over the largest one, a line per row."""
    points = [
        {"row": row, "eigenvalue": place, "share": max(value / max(values), 1e-6)}
        for row, values in runs[["row", "spectrum"]].itertuples(index=False)
        for place, value in enumerate(values, 1)
    ]
    return lines(pd.DataFrame(points), "eigenvalue", "share", False)


def cells(runs: pd.DataFrame, axis: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the final deviation from the ETF and the outcome, methods by values of a setting."""
    places = (f"data.{axis}", f"loss.{axis}", f"old.{axis}")
    key = next(key for key in places if key in runs and runs[key].notna().any())
    several = runs.groupby("loss.name")["loss.sharpness"].nunique() > 1

    def name(values: pd.Series) -> str:
        shown = [title("loss.name", values["loss.name"])]
        shown += ["log-sigmoid ψ"] if values["loss.shaping"] == "log_sigmoid" else []
        if axis not in ("epsilon", "temperature") and several[values["loss.name"]]:
            shown.append(title("loss.sharpness", values["loss.sharpness"]))
        return ", ".join(shown)

    named = runs.assign(
        row=[name(values) for _, values in runs.iterrows()],
        last=runs["loss.shaping"] == "log_sigmoid",
        sign=runs["verdict"].map(OUTCOMES).str[0],
    ).sort_values("last", kind="stable")
    order = named["row"].unique()
    values = named.pivot_table("after/geometry/nc2_deviation", "row", key).loc[order]
    signs = named.pivot_table("sign", "row", key, aggfunc="first").loc[order]
    labels = [f"{value:g}" if isinstance(value, float | int) else value for value in values.columns]
    return values.set_axis(labels, axis=1), signs.fillna("")


def heat_figure(panels: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """The deviation from the ETF by colour, and the outcome as a sign."""
    rows = -(-len(panels) // 2)
    every = np.concatenate([values.to_numpy(dtype=float).ravel() for values, _ in panels.values()])
    norm = LogNorm(np.nanmin(every), np.nanmax(every))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 1.9 * rows))
        axes = figure.subplots(rows, 2, squeeze=False)
        for ax in axes.flat[len(panels) :]:
            ax.axis("off")
        for ax, (name, (values, signs)) in zip(axes.flat, panels.items(), strict=False):
            mesh = ax.pcolormesh(values.to_numpy(dtype=float), norm=norm, cmap="cividis_r")
            for (row, column), sign in np.ndenumerate(signs.to_numpy()):
                dark = norm(values.iat[row, column]) > 0.6
                colour = "#fefefe" if dark else "#000000"
                ax.text(column + 0.5, row + 0.5, sign, ha="center", va="center", color=colour)
            ax.set_xticks(np.arange(values.shape[1]) + 0.5, [*values.columns])
            ax.set_yticks(np.arange(len(values)) + 0.5, values.index)
            ax.set_title(name)
            ax.invert_yaxis()
        label = "NC2, deviation from the ETF"
        figure.colorbar(mesh, ax=axes, label=label, aspect=40, format="{x:g}").minorticks_off()
        figure.supxlabel("     ".join(OUTCOMES.values()), fontsize=10)
    return figure


def majority(outcomes: pd.Series) -> str:
    """Return the most frequent outcome, and of how many runs if they disagree."""
    counts = outcomes.map(OUTCOMES).value_counts()
    share = f" {counts.iloc[0]}/{counts.sum()}" if len(counts) > 1 else ""
    return f"{counts.index[0]}{share}"


def draw_text(runs: pd.DataFrame, results: Path) -> Drawn:
    """The chosen c, equal c, and a map before and after training."""
    named, _ = arrange(runs[runs["stage"].isin(["final", "choose"])])
    tables = [table(named, TEXT, "Test texts", "before")]
    everywhere = runs[runs["stage"].isin(["final", "equal"])]
    panels = over_sharpness(everywhere.assign(block=""), "after/embedding/ncm")
    equal = {
        line.name: {
            f"c = {c:g}": mean_std(mean, std, share=True)
            for c, mean, std in zip(line.x, line.y, line.spread, strict=True)
        }
        for line in panels[""]
    }
    rows = pd.DataFrame(equal).T.rename_axis("loss")
    tables.append(f"Nearest class mean at equal c, %:\n\n{markdown(rows)}")
    yield "text-table.md", lambda path: write_text(path, "\n".join([*tables, NOTE]))
    figure = lines_figure(panels, "sharpness c", "nearest class mean (%)", log_x=True)
    yield "text-sharpness.png", partial(save_png, figure)
    for file in sorted(results.glob("galleries/*.npz"))[:1]:
        with np.load(file) as arrays:
            points = {
                "before training": tsne(arrays["map_penultimate"]),
                "after training": tsne(arrays["map_embedding"]),
            }
            drawn = map_figure(points, arrays["map_labels"], [*map(str, arrays["map_names"])])
        yield "text-map.png", partial(save_png, drawn)


def tsne(rows: Array) -> Array:
    """Return coordinates in the plane that keep neighbours together, shape (n, 2)."""
    from sklearn.manifold import TSNE

    found: Array = TSNE(random_state=0, init="pca").fit_transform(rows.astype(np.float32))
    return found


def table(named: pd.DataFrame, keys: Mapping[str, str], caption: str, beside: str = "") -> str:
    """Return a table of the final runs: c, a column per metric, and a row ``beside`` them."""
    runs = named[named["stage"] == "final"]
    texts, bold = measurements(runs, list(keys))
    texts.columns = bold.columns = pd.Index([*keys.values()])
    sharpness = runs.drop_duplicates("row").set_index("row")["loss.sharpness"].reindex(texts.index)
    texts.insert(0, "c", [f"{c:g}" if pd.notna(c) else "–" for c in sharpness])
    if beside and f"{beside}/{next(iter(keys))}" in runs:
        found = [100 * runs[f"{beside}/{key}"].drop_duplicates().astype(float) for key in keys]
        name = {"before": "before training"}.get(beside, beside)
        texts.loc[name] = ["–", *(mean_std(one.mean(), one.std(), share=True) for one in found)]
    steps = f"{runs['steps'].max():.0f}"
    return f"{caption}, %, after {steps} steps:\n\n{markdown(texts.rename_axis('loss'), bold)}"


def markdown(texts: pd.DataFrame, bold: pd.DataFrame | None = None) -> str:
    """Return a table of texts as Markdown; the first column is the index."""
    cells = texts
    if bold is not None:
        cells = texts.where(~bold.reindex_like(texts).eq(True), "**" + texts + "**")
    head = [str(texts.index.name or ""), *map(str, texts.columns)]
    rows = [head, ["---", *["--:"] * len(texts.columns)]]
    rows += [[str(name), *row] for name, row in zip(cells.index, cells.values, strict=True)]
    return "".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |\n" for row in rows
    )


DRAW = {"mixture": draw_mixture, "text": draw_text}

if __name__ == "__main__":
    *folders, assets = map(Path, sys.argv[1:])
    for folder in folders:
        docs_figures(folder, assets)
