"""``tricouple clip``: image and text encoders, one run, a sweep, or a study."""

from __future__ import annotations

import argparse

from tricouple.experiments.runs.command import add_options, run_words

DESCRIPTION = """\
Train an image and a text encoder (open_clip's CLIP) on captioned images, and evaluate them by
retrieval and zero-shot classification. Settings are words of the form name=value; groups choose a
bundle of settings:

  data    shapes (drawn by the program)  coco flickr8k  json csv shards (your own)
  loss    neg_mmiot pushpull infonce iot iot_uniformity dbot fused_gromov
          dbot_published fused_gromov_published (as the public code of these two computes)
  model   rn50 (the paper's)  small tiny; any of open_clip: model.vision.width=96
  scale   smoke (a minute)  cpu (minutes)  paper (the paper's settings, for GPUs)

Single settings that are often wanted: loss.sharpness=30 (c = 1/(τε)), training.epochs=20,
training.learn_temperature=true (c learns, as in CLIP), training.captions=all (an epoch shows every
caption, not every image), data.skip=true (leave out captions and images that cannot be used).

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
    add_options(parser, results="results/clip")


def run(args: argparse.Namespace) -> int:
    """Train what the words say."""
    return run_words(args, command="clip", package="tricouple.experiments.clip")
