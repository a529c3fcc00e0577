"""``tricouple demo`` and ``tricouple synthetic``: seven methods on the paper's Gaussian mixture."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tricouple_lab.names import UserError

DEMO = """\
Seven methods learn ten Gaussian classes with the same small network and the same number of steps:
Neg-MMIOT, PushPull, IOT, InfoNCE at the temperature of the others and at their sharpness, BYOL and
VICReg. At the optimum of the first four every class is one point and the class means form a
simplex (all angles equal, K−1 equal eigenvalues). The table and the page show how near each came.

c is the sharpness of a loss: 1/(τε) for Neg-MMIOT and PushPull, 1/ε for IOT, 1/τ for InfoNCE.
Compare losses at equal c. Ctrl-C keeps what is done; the same command continues.

examples:
  tricouple demo
  tricouple demo --classes 4 --out runs/four
"""
SYNTHETIC = """\
Train the methods of `tricouple demo`, and Neg-MMIOT and PushPull with log-sigmoid ψ, at several K
with several seeds ("main"), and vary one setting at a time at the first K ("maps").

examples:
  tricouple synthetic                              the main comparison
  tricouple synthetic --part all                   and the maps
  tricouple synthetic --classes 10 --seeds 1       a first look
  tricouple synthetic data.kappa=25 --out noisy    another setting for all runs
"""
SHAPED = ("neg_mmiot", "pushpull")
METHODS = ("neg_mmiot", "pushpull", "iot", "infonce", "byol", "vicreg")
# Settings of the maps, their values, and the methods that depend on them.
AXES: dict[str, tuple[tuple[float, ...], tuple[str, ...]]] = {
    "epsilon": ((0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0), ("neg_mmiot", "pushpull", "iot")),
    "temperature": ((0.05, 0.1, 0.2, 0.5, 1.0, 2.0), ("neg_mmiot", "pushpull", "infonce")),
    "n_iters": ((1, 2, 3, 5, 10, 30), ("neg_mmiot", "pushpull", "iot")),
    "data.imbalance": ((1.0, 2.0, 5.0, 10.0, 25.0), METHODS),
    "network.dim": ((2, 3, 5, 8, 9, 16, 64), METHODS),
    "data.kappa": ((0.2, 1.0, 5.0, 25.0, 100.0), METHODS),
}
BATCH_PER_CLASS = 4


def configure(parser: argparse.ArgumentParser, which: str) -> None:
    """Add options."""
    parser.description = DEMO if which == "demo" else SYNTHETIC
    add = parser.add_argument
    add("words", nargs="*", metavar="key=value", help="settings of all runs, such as data.kappa=25")
    workers = os.cpu_count() or 1
    add("--workers", type=int, default=workers, help=f"runs at a time (default: {workers})")
    add("--out", type=Path, default=Path("runs") / which, help=f"folder (default: runs/{which})")
    if which == "demo":
        add("--classes", default="10", metavar="K", help="number of classes (default: 10)")
        add("--epochs", type=int, default=20, help="of 100 steps each (default: 20)")
        add("--seed", type=int, default=0, help="of data, networks and batches (default: 0)")
        parser.set_defaults(part="main", seeds=1)
    else:
        add("--classes", default="10,20,50", metavar="K,…", help="default: 10,20,50")
        add("--epochs", type=int, default=30, help="of 100 steps each (default: 30)")
        add("--seeds", type=int, default=3, help="number of seeds (default: 3)")
        add("--part", choices=("main", "maps", "all"), default="main", help="default: main")
        parser.set_defaults(seed=0)


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Do the runs that are missing, print the table and write the page."""
    from rich.console import Console
    from rich.progress import Progress

    from tricouple_lab.runs.sweep import Plan, sweep
    from tricouple_lab.tasks.base import task_of

    try:
        classes = [int(k) for k in options.classes.split(",")]
    except ValueError:
        raise UserError(f"--classes {options.classes}: expected whole numbers") from None
    base = (f"training.epochs={options.epochs}", *words)
    shapings = ("linear",) if options.wraps == "demo" else ("linear", "log_sigmoid")
    rows = tuple(row for shaping in shapings for row in methods(shaping))
    blocks = tuple(
        (f"data.n_classes={k}", f"training.batch_size={BATCH_PER_CLASS * k}") for k in classes
    )
    plan = Plan(
        task_of("mixture"),
        rows if options.part != "maps" else (),
        base,
        blocks=blocks,
        seeds=tuple(range(options.seed, options.seed + options.seeds)),
        extra=tuple(maps(blocks[0])) if options.part != "main" else (),
    )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("training", total=len(tuple(plan.jobs({}))))

        def say(line: str) -> None:
            console.print(line)
            progress.advance(bar)

        sweep(plan, options.out, workers=options.workers, say=say)
    print(summary(options.out).to_string(index=False))
    print("NC1 and NC2 are 0 at the simplex (etf); rich: all directions are used, reduced: some")
    print(f"written: {options.out / 'report.html'}")
    return 0


def methods(shaping: str = "linear", epsilon: float = 0.5) -> Iterator[tuple[str, ...]]:
    """Words of each method at τ = 1; InfoNCE also at the sharpness of the others, τ = ε."""
    tau = "loss.temperature=1"
    if shaping != "linear":
        for row in methods():
            if row[0].removeprefix("loss=") in SHAPED:
                yield (*row, f"loss.shaping={shaping}")
        return
    yield "loss=neg_mmiot", tau, f"loss.epsilon={epsilon:g}"
    yield "loss=pushpull", tau, f"loss.epsilon_pos={epsilon:g}", f"loss.epsilon_neg={epsilon:g}"
    yield "loss=iot", f"loss.epsilon={epsilon:g}"
    yield "loss=infonce", tau
    yield "loss=infonce", f"loss.temperature={epsilon:g}"
    yield ("loss=byol",)
    yield ("loss=vicreg",)


def maps(block: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Words of each method at each value of each setting, all else as in the main part."""
    for name, (values, affected) in AXES.items():
        for value in values:
            rows = list(methods())
            if name in ("epsilon", "temperature"):
                rows += methods("log_sigmoid")
            for row in rows:
                method = row[0].removeprefix("loss=")
                if method not in affected:
                    continue
                if "." in name:
                    sampler = ("data.sampler=shuffled",) if name == "data.imbalance" else ()
                    yield (*block, *row, *sampler, f"{name}={value:g}")
                    continue
                if name == "temperature" and row == ("loss=infonce", "loss.temperature=0.5"):
                    continue  # the same runs as those from τ = 1
                keys = [f"loss.{name}"]
                if method == "pushpull" and name == "epsilon":
                    keys = ["loss.epsilon_pos", "loss.epsilon_neg"]
                kept = tuple(word for word in row if word.split("=")[0] not in keys)
                yield (*block, *kept, *(f"{key}={value:g}" for key in keys))


SHOWN = {
    "NC1": ("after/geometry/nc1", "{:.2g}"),
    "NC2": ("after/geometry/nc2_deviation", "{:.1e}"),
    "directions": ("after/geometry/directions", "{:.1f}"),
    "chance": ("chance/embedding/knn", "{:.1%}"),
    "before": ("before/embedding/knn", "{:.1%}"),
    "k-NN": ("after/embedding/knn", "{:.1%}"),
}


def summary(out: Path) -> Any:
    """One row per run: scatter within classes, angles, directions, accuracy, outcome."""
    from tricouple_lab.report.frame import frame
    from tricouple_lab.tasks.mixture import outcome

    runs = frame(out)
    table = runs[["data.n_classes", "method"]].set_axis(["K", "method"], axis=1)
    for title, (key, form) in SHOWN.items():
        table[title] = runs[key].map(form.format) if key in runs else "–"
    after = runs.filter(like="after/").rename(columns=lambda key: key.removeprefix("after/"))
    table["outcome"] = [outcome(row.dropna().to_dict()) for _, row in after.iterrows()]
    table = table.replace({"nan": "–", "nan%": "–"})
    return table.assign(seed=runs["seed"], s=runs["seconds"].map("{:.0f}".format))
