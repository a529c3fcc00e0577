"""``tricouple evaluate``: measure trained encoders of any task again; nothing is written."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tricouple_lab.names import UserError

DESCRIPTION = """\
Measure the encoders of finished runs again, also with other evaluation settings or on other data.

examples:
  tricouple evaluate runs/*
  tricouple evaluate RUN evaluation.knn_k=5 evaluation.split=validation
  tricouple evaluate RUN data.root=other_photos
"""


def configure(parser: argparse.ArgumentParser, _: str) -> None:
    """Add options."""
    parser.description = DESCRIPTION
    parser.add_argument("words", nargs="+", metavar="RUN | KEY=VALUE")
    last = "weights of the last epoch, as in the table of the run (default), or of the best one"
    parser.add_argument("--which", choices=("last", "best"), default="last", help=last)


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Print the metrics of each run."""
    changes = [word for word in words if "=" in word and not Path(word).exists()]
    folders = [Path(word) for word in words if word not in changes]
    if not folders:
        raise UserError("name the folder of a run, such as tricouple evaluate runs/NAME")
    from tricouple_lab.report.run_page import run_table
    from tricouple_lab.runs import execute
    from tricouple_lab.runs.folder import read_config, read_records
    from tricouple_lab.tasks.base import task_of

    for folder in folders:
        config = read_config(folder, changes)
        (record,) = read_records(folder)
        task = task_of(config.task)
        data = task.load(config)
        if data.digest != record.data["digest"]:
            print("note: other data than those of the run")
        measured, _ = execute.measure(task, config, data, folder, record, options.which)
        print(f"{folder.name}, {config.evaluation.split} split (%)")
        print(run_table(measured).to_string(float_format="{:.1f}".format))
    return 0
