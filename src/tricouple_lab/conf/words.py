"""The words of a command line: made ready for Hydra, and their mistakes told in a sentence.

Everything here is answered before torch is imported: a mistyped word should not take seconds.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from tricouple_lab.conf import schema
from tricouple_lab.data import TextSource
from tricouple_lab.names import LOSSES


class ConfigurationError(ValueError):
    """Words that make no configuration; the message is one line."""


@dataclass(frozen=True)
class Start:
    """Where a composition starts."""

    kind: type  # the dataclass of its configuration
    name: str  # of the command, of the folder with its groups, and of the YAML file in it
    # Whether its losses compare two sets of embeddings.
    across: bool = False
    methods: bool = True  # whether it has training methods that are no loss

    @property
    def losses(self) -> list[str]:
        """The choices of ``loss``, a group that all commands share: those with a meaning here."""
        return sorted(
            key
            for key, loss in LOSSES.items()
            if (loss.across if self.across else loss.within) and (self.methods or loss.target)
        )

    @property
    def folder(self) -> Path:
        """The groups that this command alone has, and its studies."""
        return Path(__file__).parent / self.name

    @property
    def groups(self) -> dict[str, list[str]]:
        """The settings that choose a bundle of others, and their choices."""
        folders = [self.folder / field.name for field in fields(self.kind)]
        own = {f.name: sorted(p.stem for p in f.glob("*.yaml")) for f in folders if f.is_dir()}
        return {**own, "loss": self.losses}

    @property
    def texts(self) -> set[str]:
        """The settings whose values are texts, such as names of files: ``data.root``."""
        return {name for name, kind in _leaves(self.kind) if kind in (str, str | None)}

    @property
    def open_ended(self) -> set[str]:
        """The settings that take more names than the files list: ``trainer``, ``loss``."""
        return {name for name, kind in _leaves(self.kind) if get_origin(kind) is dict}


def _leaves(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, found in get_type_hints(kind).items():
        if is_dataclass(found):
            yield from _leaves(found, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            yield prefix + name, found


STARTS: dict[type, Start] = {
    schema.Train: Start(schema.Train, "train"),
    schema.Clip: Start(schema.Clip, "clip", across=True),
    schema.Text: Start(schema.Text, "text", methods=False),
}


def spelt(words: Sequence[str], kind: type, *, several: bool = False) -> list[str]:
    """Words as Hydra reads them: whatever it would stumble over is quoted, ``~`` is expanded.

    In a sweep commas are between ``several`` values.

    Raises:
        ConfigurationError: If a word is no setting, or a group has no such choice.

    Example:
        >>> spelt(["data=folder", "data.root=été (1)"], schema.Train)
        ['data=folder', "data.root='été (1)'"]
    """
    return [_spelt(word, STARTS[kind], several) for word in words]


def _spelt(word: str, start: Start, several: bool) -> str:
    name, equals, value = word.partition("=")
    plain, groups = name.lstrip("+"), start.groups
    function = several and re.fullmatch(r"\w+\(.*\)", value)  # of Hydra, as in seed=range(0,5)
    if not equals or not re.fullmatch(r"[A-Za-z_][\w/@.]*", plain, re.ASCII):
        raise ConfigurationError(_not_a_setting(word, start))
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name}: {value!a} is no text in UTF-8: rename it") from None
    if plain in groups and not function:
        for choice in value.split(","):
            if choice not in groups[plain]:
                raise ConfigurationError(_no_choice(plain, choice, groups[plain]))
    if not any(plain.startswith(f"{parent}.") for parent in start.open_ended):
        name = plain  # nothing else can be added, and Hydra would add it without a word
    if plain not in start.texts or function:
        return f"{name}={value if _read(value) is not ... else _quoted(value)}"
    if value in ("", "null") or re.fullmatch(r"(['\"]).*\1", value):
        return f"{name}={value}"
    if "${" in value:
        raise ConfigurationError(f"{word}: names with ${{ cannot be given here: rename it")
    return f"{name}={','.join(map(_literal, value.split(',') if several else [value]))}"


def _read(value: str) -> Any:
    """What Hydra makes of a value; ``...`` if it cannot read it."""
    try:
        return OverridesParser.create().parse_override(f"x={value}").value()
    except HydraException:
        return ...


def _literal(text: str) -> str:
    """A text that Hydra takes as it stands, but for the ~ of one's home."""
    if text == "~" or text.startswith("~/"):
        text = str(Path(text).expanduser())
    return text if _read(text) == text else _quoted(text)


def _quoted(text: str) -> str:
    # In Hydra's quotes a backslash means itself, but for those before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + "\\'" * bool(found[2]), text)
    return f"'{escaped}'"


def _not_a_setting(word: str, start: Start) -> str:
    named = [f"{name}={word}" for name, choices in start.groups.items() if word in choices]
    if named:
        return f"{word}: settings are name=value; did you mean {' or '.join(named)}?"
    if word in {name.partition(".")[0] for name, _ in _leaves(start.kind)}:
        return f"{word}: settings are name=value, without spaces around ="
    if "data.root" in start.texts and "folder" in start.groups["data"] and Path(word).is_dir():
        return f"{word}: settings are name=value; for own images data=folder data.root={word}"
    return f"{word}: settings are name=value, such as data={start.groups['data'][0]}"


def _no_choice(name: str, choice: str, choices: Sequence[str]) -> str:
    text = f"{name}={choice}: choose one of {', '.join(choices)}"
    if name == "data" and "folder" in choices and "/" in choice:
        text += f"; for own images data=folder data.root={choice}"
    return text


# --- values that can only be mistakes ------------------------------------------------------------

_LEAST = {
    "training.epochs": 1,
    "training.batch_size": 2,  # a batch has an anchor and a negative
    "training.geometry_every": 1,
    "training.geometry_samples": 1,
    "training.weight_decay": 0,
    "data.validation_size": 0,
    "data.test_size": 0,
    "data.shots": 2,  # an anchor and a positive
    "model.head_dim": 1,
    "setting.views": 1,
    "evaluation.neighbours": 1,
    "evaluation.probe_epochs": 1,
    "evaluation.probe_batch_size": 1,
    "evaluation.probe_weight_decay": 0,
    "evaluation.gallery": 0,
}
_ABOVE_ZERO = ("training.learning_rate", "evaluation.probe_learning_rate")
_CHOICES = {
    "evaluation.part": ("test", "validation"),
    "setting.name": ("scl", "ucl"),
    "training.captions": ("one", "all"),
    "data.format": ("shapes", "coco", "csv", "shards"),
}
# Of a loss; the first that is wrong is told, since others may follow from it.
_SCALES = ("sharpness", "epsilon", "epsilon_pos", "epsilon_neg", "regularisation", "temperature")


def check(config: schema.RunConfig) -> None:
    """Refuse what can only be a mistake, all of it at once.

    Raises:
        ConfigurationError: It names each setting and its value.
    """
    wrong = [
        *_wrong_loss(config.loss),
        *_wrong_numbers(config),
        *_wrong_places(config),
        *_wrong_device(config.trainer),
    ]
    if wrong:
        raise ConfigurationError("; ".join(wrong))


def _wrong_loss(loss: Mapping[str, Any]) -> Iterator[str]:
    """A name is part of what a word chooses: alone it would call one loss by another's name."""
    name, target = loss["name"], loss.get("_target_")
    if name not in LOSSES or LOSSES[name].target not in (None, target):
        yield f"{target} is not the loss {name!r}: choose a loss by its word, such as loss=infonce"


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _wrong_numbers(config: schema.RunConfig) -> Iterator[str]:
    def found(name: str) -> Any:  # None where this kind of run has no such setting
        try:
            return attrgetter(name)(config)
        except AttributeError:
            return None

    for name, least in _LEAST.items():
        value = found(name)
        if value is not None and not least <= value < math.inf:
            yield f"{name} must be at least {least}, got {value}"
    for name in _ABOVE_ZERO:
        value = found(name)
        if value is not None and not _above_zero(value):
            yield f"{name} must be finite and > 0, got {value}"
    for name in _SCALES:
        value = config.loss.get(name)
        if value is not None and not _above_zero(value):
            yield f"loss.{name} must be finite and > 0, got {value}"
            break
    for name, choices in _CHOICES.items():
        value = found(name)
        if value is not None and value not in choices:
            yield f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}"

    if isinstance(config, schema.Train):
        if config.setting.name == "ucl" and config.setting.views == 1:
            yield (
                "setting.views is 1: without labels the positives are other views of an image, so "
                "use 2"
            )
        if config.evaluation.part == "validation" and not config.data.validation_size:
            yield "evaluation.part=validation needs data.validation_size above 0"


def _wrong_places(config: schema.RunConfig) -> Iterator[str]:
    for name in ("runs", "run"):
        value = getattr(config, name)
        path = Path(value or ".")
        there = next(place for place in (path, *path.parents, Path(".")) if place.exists())
        if not there.is_dir():
            yield f"{name}={value}: {there} is a file, and should be a folder"
    if isinstance(config, schema.Text):
        yield from _wrong_texts(config.data, config.model)
        return
    data = config.data
    if isinstance(data, schema.Data):
        if data.name == "folder" and data.root is None:
            yield "data=folder needs data.root: the folder of images"
        own = {"root": data.root, "eval_root": data.eval_root} if data.name == "folder" else {}
        for name, value in own.items():
            if value is not None and not Path(value).expanduser().is_dir():
                yield f"data.{name}={value}: {Path(value).absolute()} is not a folder"
    elif data.format != "shapes" and data.root is not None:
        root = Path(data.root).expanduser()
        if not root.is_dir():
            yield f"data.root={data.root}: {root.absolute()} is not a folder"
            return
        for name in ("train", "validation", "test"):
            value = getattr(data, name)
            if value is None and name == "train":
                yield f"data={data.name} needs data.train: a file of captions"
            elif value and not ((root / value).exists() or glob.glob(value, root_dir=root)):
                yield f"data.{name}={value}: there is no {root / value}"


def _wrong_texts(data: TextSource, model: schema.SentenceModel) -> Iterator[str]:
    if model.name == "own" and model.path is None:
        yield "model=own needs model.path: a folder, or a name on the hub"
    if data.own and data.path is None:
        yield "data=csv needs data.path: a table with the columns text and label, or text and pair"
    for name, value in {"path": data.path, "test_path": data.test_path}.items():
        if value is not None and not data.own:
            yield f"data.{name}={value} is for data=csv"
        elif value is not None and not Path(value).expanduser().is_file():
            yield f"data.{name}={value}: there is no such file"
    if data.shots is not None and data.train_size is not None:
        yield "data.shots and data.train_size both say how many texts to train on: leave out one"


def _wrong_device(flags: Mapping[str, Any]) -> Iterator[str]:
    wanted = flags.get("accelerator")
    if wanted in ("gpu", "cuda", "mps"):
        import torch  # who asks for a GPU waits for this second

        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        if not {"gpu": cuda or mps, "cuda": cuda, "mps": mps}[wanted]:
            yield (
                f"trainer.accelerator={wanted}: PyTorch finds no such device here; leave it out to "
                "take what there is"
            )
