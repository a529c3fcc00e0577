"""``tricouple evaluate``: what trained encoders are worth."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tricouple.experiments.runs.command import user_errors
from tricouple.options import CommandError

DESCRIPTION = """\
Evaluate the encoders of runs: linear probe, k nearest neighbours, confusion matrix, geometry and
t-SNE, of the penultimate features and of the projected embedding. The result goes into
evaluation.json beside the weights. Of a run that is not finished, the last finished epoch counts.
"""

EXAMPLES = """\
examples:
  tricouple evaluate runs/cifar10-ucl-*                   as each run's configuration says
  tricouple evaluate RUN evaluation.probe_epochs=500      the paper's linear probe
  tricouple evaluate RUN evaluation.part=validation       on images held out of the training set
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RUN | evaluation.name=value",
        help="folders of runs, and settings of the evaluation to use instead of the runs' own",
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate all runs; their tables are printed as they are done."""
    from tricouple.conf.compose import override
    from tricouple.experiments.vision.evaluate import evaluate_run
    from tricouple.experiments.vision.run_folder import RunFolder
    from tricouple.experiments.vision.show import evaluation_table

    console = Console()
    settings = [word for word in args.words if "=" in word]
    folders = [RunFolder(Path(word)) for word in args.words if "=" not in word]
    for word in settings:
        if not word.startswith(("evaluation.", "data.root=", "trainer.", "progress=")):
            raise CommandError(f"{word}: only evaluation.*, trainer.* and data.root can be changed")
    if not folders:
        raise CommandError("name the folder of a run")
    with user_errors():
        configs = [override(folder.read_config(), settings) for folder in folders]
        for config, folder in zip(configs, folders, strict=True):
            console.print(evaluation_table(evaluate_run(config, folder, console)))
    return 0
