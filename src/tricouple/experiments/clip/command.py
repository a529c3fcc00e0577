"""``tricouple clip``: image and text encoders, one run, a sweep, or a study."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from tricouple.experiments.options import CommandError
from tricouple.experiments.vision.command import user_errors

DESCRIPTION = """\
Train an image and a text encoder (open_clip's CLIP) on captioned images, and evaluate them by
retrieval and zero-shot classification. Settings are words of the form name=value; groups choose a
bundle of settings:

  data    shapes (drawn by the program)  coco flickr8k  json csv shards (your own)
  loss    neg_mmiot pushpull infonce iot iot_uniformity dbot fused_gromov
          dbot_published fused_gromov_published (as the public code of these two computes)
  model   rn50 (the paper's)  small tiny; any of open_clip: model.vision.width=96
  scale   smoke (a minute)  cpu (minutes)  paper (the paper's settings, for GPUs)

The folder of a run is named after its settings, and gets a page, report.html, with queries and
their answers. The same command again continues a run that was interrupted, to the same numbers,
and skips one that is finished.
"""

EXAMPLES = """\
examples:
  tricouple clip data=shapes loss=neg_mmiot scale=smoke
  tricouple clip data=coco data.root=~/coco loss=neg_mmiot scale=paper trainer.precision=bf16-mixed
  tricouple clip data=csv data.train=photos.csv data.train_images=photos evaluation.zero_shot=[]
  tricouple clip data=shards data.train='shards/*.tar' data.skip=true
  tricouple clip -m loss=infonce,iot,pushpull,neg_mmiot seed=0,1,2     every combination
  tricouple clip loss=iot --show                                       the settings, no run
  tricouple clip --study clip_cpu                                      compare losses; resumable
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("words", nargs="*", metavar="name=value", help="settings, as Hydra understands them")
    add("-m", "--multirun", action="store_true", help="run every combination of listed values")
    add("--show", action="store_true", help="print the settings and the folder, and stop")
    add("--study", metavar="NAME", help="run a study: its name, or a YAML file")
    add("--out", type=Path, default=Path("results/clip"), help="results of a study")


def run(args: argparse.Namespace) -> int:
    """Train what the words say."""
    # With several devices Lightning starts this command again for each; one of them speaks.
    console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
    with user_errors():
        if args.study is not None:
            return study(args, console)
        if args.multirun:
            return multirun(args, console)
        return single(args, console)


def study(args: argparse.Namespace, console: Console) -> int:
    """Run a study, or go on with it."""
    if args.words:
        raise CommandError("a study has its own settings: leave out " + " ".join(args.words))

    from tricouple.experiments.clip.study_runs import StudyRuns, read_study

    found = read_study(args.study)
    StudyRuns(found, args.out, Path("runs") / found.name, console).go()
    return 0


def multirun(args: argparse.Namespace, console: Console) -> int:
    """Every combination of the listed values; 1 if some run failed."""
    from tricouple.conf.clip.schema import Clip
    from tricouple.conf.compose import STARTS
    from tricouple.experiments.runs.sweep import sweep

    jobs = sweep(args.words, console, "clip", STARTS[Clip])
    return int(any(job.failed for job in jobs))


def single(args: argparse.Namespace, console: Console) -> int:
    """One run, and its page."""
    from tricouple.conf.clip.schema import Clip
    from tricouple.conf.compose import configure as configuration
    from tricouple.conf.compose import to_yaml

    # Before the imports below, which take seconds: a mistyped word is answered at once.
    config = configuration(args.words, Clip)

    from tricouple.experiments.clip.run_folder import folder_of

    if args.show:
        console.print(f"# {folder_of(config).path}\n{to_yaml(config)}", markup=False)
        return 0

    from tricouple.experiments.clip.show import evaluation_table
    from tricouple.experiments.clip.train import train
    from tricouple.report.page import write_report

    finished = train(config, console)
    if finished.evaluation:
        console.print(evaluation_table(finished.evaluation))
        page = write_report(finished.folder.path)
        console.print(f"Queries and answers: {page}", soft_wrap=True)
    return 0
