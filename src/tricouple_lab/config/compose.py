"""From words of the command line to a checked configuration.

A word is ``key=value``. The type of every setting is known, so a text is taken as it stands:
spaces, accents, brackets and colons need no quotes beyond those of the shell.
"""

import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, cast, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tricouple_lab import names
from tricouple_lab.config import schema
from tricouple_lab.config.schema import Run
from tricouple_lab.names import UserError, nearest

OPEN_GROUPS = ("loss", "trainer")  # their keys are arguments of a class, checked when it is known
TEXTS = ("data.root", "runs", "run", "model.path")  # never split at commas by expand()
SHORT = ("data", "loss", "backbone", "model")  # ``loss=iot`` is short for ``loss.name=iot``
EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def settings_of(schema: type, prefix: str = "") -> dict[str, Field[Any]]:
    """Return the dataclass field of each setting, by dotted name, such as ``training.epochs``."""
    hints = get_type_hints(schema)
    found: dict[str, Field[Any]] = {}
    for item in fields(schema):
        if is_dataclass(hints[item.name]):
            found |= settings_of(hints[item.name], f"{prefix}{item.name}.")
        else:
            found[prefix + item.name] = item
    return found


def settings_help(task: str) -> str:
    """Return the tables of names and every setting of a task with its default."""
    file = Path(__file__).parent / task / "cpu.yaml"
    config = OmegaConf.to_object(OmegaConf.merge(schema.SCHEMAS[task], OmegaConf.load(file)))
    lines = [f"{kind + '=':<10} {', '.join(table)}" for kind, table in names.TABLES[task].items()]
    lines += ["", "settings (default at scale=cpu): meaning [choices]"]
    for key, item in settings(task).items():
        value, choices = attrgetter(key)(config), ", ".join(item.metadata["choices"])
        default = value if isinstance(value, str) else json.dumps(value)
        ends = f" [{choices}]" * bool(choices)
        lines.append(f"  {key} ({default}): {item.metadata['help']}{ends}")
    return "\n".join(lines)


@cache
def settings(task: str) -> dict[str, Any]:
    """The dataclass field of each setting of a task, by dotted name."""
    found = settings_of(schema.SCHEMAS[task])
    return {key: item for key, item in found.items() if key != "task"}


def compose(task: str, words: Sequence[str]) -> Any:
    """Return the configuration of a task that the words describe; of two equal keys the last."""
    values = dict(split_word(word) for word in words)
    config = OmegaConf.structured(schema.SCHEMAS[task])
    scale = choose_value(task, "scale", values.get("scale", config.scale))
    file = Path(__file__).parent / task / f"{scale}.yaml"
    if not file.exists():
        raise UserError(f"scale={scale}: {task} has no settings of that scale")
    config.merge_with(OmegaConf.load(file))
    tables = names.TABLES[task]
    for kind in ("data", "backbone", "model"):
        if kind in tables:
            name = names.choose(kind, values.get(f"{kind}.name", config[kind].name), tables[kind])
            if kind == "backbone" and f"{kind}.name" not in values and names.missing_wheel(name):
                name = config.backbone.name = names.FALLBACK  # the task says so
            row = tables[kind][name]
            for key, value in {**row.settings, **(row.paper if scale == "paper" else {})}.items():
                OmegaConf.update(config, key, value)
    for key, text in values.items():
        assign(task, config, key, text)
    composed = cast(Run, OmegaConf.to_object(config))
    loss = names.LOSSES[composed.loss["name"]]
    defaults = dict(loss.defaults)
    if scale == "paper":
        clip = task == "clip" and loss.paper_clip is not None
        defaults |= (loss.paper_clip or {}) if clip else loss.paper
    composed.loss = {**defaults, **composed.loss}
    return composed


def split_word(word: str) -> tuple[str, str]:
    """Split ``key=value``; ``loss=iot`` is short for ``loss.name=iot``."""
    key, equals, text = word.partition("=")
    if not equals:
        raise UserError(f"{word}: settings are written key=value, such as training.epochs=10")
    return (f"{key}.name" if key in SHORT else key), text


def assign(task: str, config: DictConfig, key: str, text: str) -> None:
    """Set one setting from the text of the command line, converted to the setting's type."""
    known = settings(task)
    group, _, name = key.partition(".")
    if group in OPEN_GROUPS and name:
        value = choose_value(task, key, text) if key == "loss.name" else parse_scalar(text)
    elif key in known:
        value = choose_value(task, key, text)
    else:
        raise UserError(f"{key}={text}: no such setting ({nearest(key, known)})")
    try:
        if isinstance(value, str):
            value = value.replace("${", r"\${")  # a text, not a reference to another setting
        OmegaConf.update(config, key, value)
    except OmegaConfBaseException:
        kind = str(known[key].type).removesuffix(" | None")
        raise UserError(f"{key}={text}: expected {EXPECTED.get(kind, kind)}") from None
    least, below = known[key].metadata["limits"] if key in known else (-math.inf, math.inf)
    number = OmegaConf.select(config, key)
    if isinstance(number, int | float) and not least <= number < below:
        less = f" and less than {below:g}" if below < math.inf else ""
        raise UserError(f"{key}={text}: must be at least {least:g}{less}")


def choose_value(task: str, key: str, text: str) -> Any:
    """Check a text against the allowed values of its setting; null and lists become objects."""
    kind = key.removesuffix(".name")
    table = names.TABLES[task].get(kind)
    if table is not None and (key.endswith(".name") or kind == "setting"):
        return names.choose(kind, text, table)
    item = settings(task)[key]
    choices = item.metadata["choices"]
    if choices and text not in choices:
        raise UserError(f"{key}={text}: choices are {', '.join(choices)}")
    if str(item.type).endswith("| None") and text == "null":
        return None
    if str(item.type).startswith("list"):
        values = (value.strip() for value in text.strip("[]").split(","))
        return [value for value in values if value not in ("", "none")]
    return text


def parse_scalar(text: str) -> Any:
    """Return the number, truth value or null that a text stands for, else the text."""
    constants = {"true": True, "false": False, "null": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def expand(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of comma lists: ``loss=iot,infonce seed=range(0,3)`` gives six.

    Values of texts, such as ``data.root`` and ``runs``, are not split.
    """
    choices = []
    for word in words:
        key, _, text = word.partition("=")
        interval = re.fullmatch(r"range\((-?\d+),\s*(-?\d+)\)", text)
        if interval:
            values = [str(number) for number in range(int(interval[1]), int(interval[2]))]
        else:
            values = [text] if key in TEXTS or text.startswith("[") else text.split(",")
        choices.append([f"{key}={value}" for value in values])
    return list(itertools.product(*choices))


def check_arguments(prefix: str, arguments: Iterable[str], target: Callable[..., Any]) -> None:
    """Raise unless ``target`` takes these arguments; ``prefix`` comes before their name."""
    known = [name for name in inspect.signature(target).parameters if name != "self"]
    for name in arguments:
        if name not in known:
            title, near = getattr(target, "__name__", str(target)), nearest(name, known)
            raise UserError(f"{prefix}{name}: {title} has no such argument ({near})")


def identity_settings(config: Run) -> dict[str, Any]:
    """Return the settings that another value of makes another run, by their dotted names."""
    return {
        key: attrgetter(key)(config)
        for key, item in settings(config.task).items()
        if item.metadata["identity"]
    }
