"""``tricouple train``: one run, a sweep, or a study."""

from __future__ import annotations

import argparse

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
    return run_words(args, command="train", package="tricouple.experiments.vision")
