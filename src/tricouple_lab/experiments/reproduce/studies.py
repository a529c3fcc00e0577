"""Items that are parts of studies: the synthetic mixture, the image and image-text tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from scipy.stats import spearmanr

from tricouple_lab.conf.compose import read_study as read_plan
from tricouple_lab.conf.schema import Clip
from tricouple_lab.conf.schema import Study as Plan
from tricouple_lab.experiments.reproduce.items import LOSSES, NOTHING, Item, Request, Shown
from tricouple_lab.names import DATA, SETTINGS, loss_name
from tricouple_lab.report import clip as clip_report
from tricouple_lab.report import synthetic as synthetic_report
from tricouple_lab.report import vision as vision_report
from tricouple_lab.report.chart import Chart
from tricouple_lab.report.embeddings import read_pictures, tsne_chart
from tricouple_lab.report.groups import Group, by_place
from tricouple_lab.report.numbers import listing
from tricouple_lab.report.read import Study, read_study
from tricouple_lab.report.synthetic import check_claims, claims_sentence

SETS = ("mnist", "svhn", "cifar10", "cifar100", "tiny_imagenet")
NETWORKS = ("resnet18", "resnet34", "resnet50", "vit_b16")
_TIMM = {"vit_b16": "vit_base_patch16_224"}  # where results call a backbone by another word

# What a processor core can do: enough to compare, little, or just enough to show that it runs.
_TRAINED = ("training.epochs=3", "training.batch_size=128", "evaluation.max_test_size=1000")
_SHOWN = ("training.epochs=1", "training.batch_size=128", "training.geometry_samples=128",
          "evaluation.max_test_size=250")  # fmt: skip
_BUDGET = {  # seeds, images (of Tiny-ImageNet, where they are larger, at most 500), settings
    "resnet18": (3, 1000, _TRAINED),
    "resnet34": (1, 500, _TRAINED),
    "resnet50": (1, 256, _SHOWN),
    "vit_b16": (1, 256, _SHOWN),
}


@dataclass(frozen=True)
class Synthetic(Item):
    """A picture of the study of the synthetic mixture."""

    chart: Callable[[Study], Chart]

    def run(self, request: Request) -> None:
        """The main comparison; all pictures share it."""
        from tricouple_lab.experiments.synthetic.config import RunConfig, main_cells
        from tricouple_lab.experiments.synthetic.study import conduct

        smoke = request.scale == "smoke"
        classes, seeds = ((10,), range(1)) if smoke else ((10, 20, 50), range(3))
        base = RunConfig(steps=20) if smoke else RunConfig()
        cells = main_cells(base, classes, seeds)
        folder = request.folder / "synthetic"
        conduct(folder, "synthetic", base, cells, workers=request.workers, snapshots=True)

    def show(self, folder: Path) -> Shown:
        """The picture, and which claims hold."""
        if not (folder / "synthetic" / "runs.jsonl").exists():
            return NOTHING
        study = read_study(folder / "synthetic")
        groups = synthetic_report.main_groups(study)
        return Shown([*claims_sentence(check_claims(groups))], charts=[self.chart(study)])


@dataclass(frozen=True)
class Images(Item):
    """A table of linear probe and k-NN accuracy."""

    sets: tuple[str, ...]
    settings: tuple[str, ...]
    networks: tuple[str, ...] = NETWORKS

    def plans(self, scale: str) -> Iterator[Plan]:
        """The runs of each backbone: one budget for all losses; at scale cpu all at c = 10."""
        base = [f"scale={scale}", "evaluation.figures=false", "progress=false"]
        rate = 5e-3 if scale == "paper" else 1e-3
        sets, networks, seeds = self.sets, self.networks, 4
        if scale == "smoke":
            sets, networks, seeds = ("digits",), ("resnet18",), 1
            base += ["data.max_train_size=256", "training.epochs=1", "evaluation.probe_epochs=5"]
        for network in networks:
            own: dict[str, tuple[str, ...]] = {}
            if scale == "cpu":
                seeds, images, small = _BUDGET[network]
                sizes = dict.fromkeys(sets, images) | {"tiny_imagenet": min(images, 500)}
                own = {d: (f"data.max_train_size={size}", *small) for d, size in sizes.items()}
            blocks = [
                [f"data={data}", f"setting={setting}", f"backbone={network}", *own.get(data, ())]
                for data, setting in product(sets, self.settings)
            ]
            yield Plan("image_tables", base, blocks, list(LOSSES), [], [rate], [*range(seeds)])

    def run(self, request: Request) -> None:
        """All blocks of the table."""
        from tricouple_lab.experiments.runs.study import run_study
        from tricouple_lab.experiments.vision import VISION

        out, runs = request.folder / "image_tables", Path("runs") / "image_tables"
        for plan in self.plans(request.scale):
            run_study(VISION, plan, out, runs, request.console, workers=request.workers)

    def show(self, folder: Path) -> Shown:
        """Ours beside the paper's."""
        if not (folder / "image_tables" / "runs.jsonl").exists():
            return NOTHING
        study = read_study(folder / "image_tables")
        networks = [_TIMM.get(name, name) for name in self.networks]
        groups = [
            own
            for own in vision_report.final_groups(study)
            if own.config["data"] in (*self.sets, "digits")
            and own.config["setting"] in self.settings
            and own.config["backbone"] in networks
        ]
        if not any(own.finished for own in groups):
            return NOTHING
        tables = vision_report.accuracy_tables(groups)
        return Shown([*_agreement(groups), *vision_report.budget(groups)], tables)


def _agreement(groups: Sequence[Group]) -> Iterator[str]:
    """Whether the losses stand in the paper's order."""
    for place, own in by_place(groups).items():
        pairs = [
            (g.percent("penultimate/linear").mean, paper.mean, loss_name(g.loss))
            for g in own
            if (paper := vision_report.papers_accuracy(g.config, "linear")) is not None
        ]
        if len(pairs) < 3:
            continue
        ours, theirs = max(pairs), max(pairs, key=lambda pair: pair[1])
        order = float(spearmanr([p[0] for p in pairs], [p[1] for p in pairs]).statistic)
        yield (
            f"{place}: best in the paper {theirs[2]} ({theirs[1]:.2f}), here {ours[2]} "
            f"({ours[0]:.2f}); rank correlation of the {len(pairs)} losses {order:+.2f}."
        )


@dataclass(frozen=True)
class ImageText(Item):
    """The table of retrieval and zero-shot classification."""

    def run(self, request: Request) -> None:
        """The study of this scale."""
        from tricouple_lab.experiments.clip import CLIP
        from tricouple_lab.experiments.runs.study import run_study

        if request.scale == "smoke":
            base = ["scale=smoke", "data=shapes", "training.epochs=1", "progress=false"]
            plan = Plan("clip_smoke", base, [[]], ["infonce", "pushpull"], [], [1e-3], [0])
        else:
            plan = read_plan(f"clip_{request.scale}", Clip)
        runs = Path("runs") / plan.name
        out = request.folder / plan.name.removesuffix("_cpu")
        run_study(CLIP, plan, out, runs, request.console, workers=request.workers)

    def show(self, folder: Path) -> Shown:
        """Ours beside the paper's; the largest scale there is."""
        for name in ("clip_paper", "clip", "clip_smoke"):
            if (folder / name / "runs.jsonl").exists():
                study = read_study(folder / name)
                groups = clip_report.finals(study)
                tables = [
                    *clip_report.retrieval_tables(groups, paper=True),
                    *clip_report.zero_shot_tables(groups, paper=True),
                ]
                return Shown([f"Trained on {clip_report.where(study)}.",
                              *clip_report.headline(groups)], tables)  # fmt: skip
        return NOTHING


def _charts(make: Callable[[Sequence[Group]], Chart], shaping: str) -> Callable[[Study], Chart]:
    """A picture of the runs with one ψ; losses without one are on both."""
    return lambda study: make(synthetic_report.main_groups(study)).chosen({"shaping": shaping})


def _tsne(study: Study) -> Chart:
    return tsne_chart(read_pictures(study, synthetic_report.main_groups(study)))


_DRAWN = "nothing: the data are drawn"
_MIXTURE = {"smoke": "half a minute", "cpu": "an hour for all of them", "paper": "the same"}
_HOURS = {"smoke": "a minute, on digits", "cpu": "ten minutes on 1000 images or fewer",
          "paper": "days of a GPU"}  # fmt: skip
_LABELS = ("mnist", "svhn", "CIFAR-10", "CIFAR-100", "tiny-imagenet")

ITEMS: tuple[Item, ...] = (
    Synthetic("collapse", "Neural collapse on the mixture, linear ψ", ("fig:nc_synthetic_affine",),
              _DRAWN, _MIXTURE, _charts(synthetic_report.curves_chart, "linear")),
    Synthetic("spectra", "Class-mean spectra, linear ψ", ("fig:dc_synthetic_affine",),
              _DRAWN, _MIXTURE, _charts(synthetic_report.spectra_chart, "linear")),
    Synthetic("tsne", "t-SNE of the embeddings, both ψ", ("fig:visual_final_synthetic",),
              _DRAWN, _MIXTURE, _tsne),
    Synthetic("collapse-log-sigmoid", "Neural collapse, log-sigmoid ψ", ("fig:nc_synthetic",),
              _DRAWN, _MIXTURE, _charts(synthetic_report.curves_chart, "log_sigmoid")),
    Synthetic("spectra-log-sigmoid", "Class-mean spectra, log-sigmoid ψ", ("fig:dc_synthetic",),
              _DRAWN, _MIXTURE, _charts(synthetic_report.spectra_chart, "log_sigmoid")),
    Images("table-1", "Five data sets, ResNet-50 and ViT-B/16, with and without labels",
           ("tab:scl_ucl",), listing([DATA[name] for name in SETS]),
           _HOURS | {"cpu": "half an hour, to show that they run"}, SETS, ("scl", "ucl"),
           ("resnet50", "vit_b16")),
    *(
        Images(f"{setting}-{data.replace('_', '-')}",
               f"{DATA[data]}, {SETTINGS[setting]}: linear probe and k-NN, four backbones",
               (f"tab:{setting}-{label}",), DATA[data], _HOURS, (data,), (setting,))
        for setting in ("scl", "ucl")
        for data, label in zip(SETS, _LABELS, strict=True)
    ),
    ImageText("clip", "Image-text training: retrieval, zero-shot classification", ("tab:clip",),
              "Flickr8k (scale cpu), MS-COCO (scale paper)",
              {"smoke": "a minute, on shapes", "cpu": "hours", "paper": "days of a GPU"}),
)  # fmt: skip
