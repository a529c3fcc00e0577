"""``tricouple train``: one run, a sweep, or a study."""

from __future__ import annotations

import argparse

from rich.console import Console

from tricouple.experiments.runs.command import add_options, run_words

DESCRIPTION = """\
Train an image encoder with a contrastive loss and evaluate it. Settings are words of the form
name=value; groups choose a bundle of settings:

  data      digits mnist svhn cifar10 cifar100 tiny_imagenet folder
  setting   scl (positives share a class)  ucl (positives are views of one image)
  loss      neg_mmiot pushpull iot iot_uniformity infonce invaspread dbot vicreg byol
  backbone  resnet18 resnet34 resnet50 vit_b16; any model of timm: backbone.name=NAME
  scale     smoke (seconds)  cpu (minutes)  paper (the paper's settings, for GPUs)

The folder of a run is named after its settings. The same command again continues a run that was
interrupted, to the same numbers, and skips one that is finished.
"""

EXAMPLES = """\
examples:
  tricouple train data=digits setting=scl loss=neg_mmiot scale=smoke
  tricouple train data=cifar10 setting=ucl loss=neg_mmiot backbone=resnet18 seed=0
  tricouple train data=folder data.root=photos setting=ucl backbone.head_dim=128
  tricouple train -m loss=infonce,iot,pushpull,neg_mmiot seed=0,1,2      every combination
  tricouple train scale=paper data=cifar100 trainer.devices=4 trainer.precision=bf16-mixed
  tricouple train -m seed=0,1,2 hydra/launcher=submitit_slurm            on a cluster
  tricouple train loss=iot --show                                        the settings, no run
  tricouple train --study vision_cpu                                     compare losses; resumable
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add_options(parser, results="results/vision")


def run(args: argparse.Namespace) -> int:
    """Train what the words say."""
    studies = "tricouple.experiments.vision.study_runs"
    return run_words(args, single=single, multirun=multirun, studies=studies)


def multirun(args: argparse.Namespace, console: Console) -> int:
    """Every combination of the listed values; 1 if some run failed."""
    from tricouple.experiments.runs.sweep import sweep

    return int(any(job.failed for job in sweep(args.words, console)))


def single(args: argparse.Namespace, console: Console) -> int:
    """One run."""
    from tricouple.conf.compose import configure as configuration
    from tricouple.conf.compose import to_yaml
    from tricouple.conf.schema import Train

    # Before the imports below, which take seconds: a mistyped word is answered at once.
    config = configuration(args.words, Train)

    from tricouple.experiments.vision.run_folder import folder_of
    from tricouple.experiments.vision.show import evaluation_table

    if args.show:
        console.print(f"# {folder_of(config).path}\n{to_yaml(config)}", markup=False)
        return 0

    from tricouple.experiments.vision.train import train

    finished = train(config, console)
    if finished.evaluation:
        console.print(evaluation_table(finished.evaluation))
    return 0
