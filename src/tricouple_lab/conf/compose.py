"""From the words of a command line to a checked, typed configuration, and to its loss."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
)
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from tricouple_lab.conf import schema
from tricouple_lab.conf.words import STARTS, ConfigurationError, Start, spelt
from tricouple_lab.names import LOSSES

if TYPE_CHECKING:
    from tricouple.losses.base import ContrastiveLoss

T = TypeVar("T")


def configure(words: Sequence[str], kind: type[T]) -> T:
    """Compose a configuration of words as Hydra understands them: ``training.epochs=3``.

    Raises:
        ConfigurationError: If a word is misspelt or has a value of the wrong type.

    Example:
        >>> configure(["data=mnist", "seed=3"], schema.Train).data.name
        'mnist'
    """
    start, words = STARTS[kind], spelt(words, kind)
    with hydra_ready(start, words):
        composed = compose(start.name, overrides=words)
        OmegaConf.resolve(composed)
        return to_object(composed, kind)


def read_study(name: str, kind: type) -> schema.Study:
    """A study by its name, or by the path of its YAML file.

    A word of its blocks with several values stands for a block of each, as in a sweep.

    Raises:
        ConfigurationError: If there is none, or it cannot be read.

    Example:
        >>> len(read_study("vision_paper", schema.Train).blocks)
        40
    """
    own = STARTS[kind].folder / "study"
    try:
        path = Path(name) if name.endswith(".yaml") else own / f"{name}.yaml"
        study = read_yaml(path, schema.Study)
    except FileNotFoundError as error:
        names = sorted(entry.stem for entry in own.iterdir())
        raise ConfigurationError(
            f"study {name!r} is not there: choose one of {', '.join(names)}, or give a YAML file"
        ) from error
    blocks = [list(words) for block in study.blocks for words in product(*map(_choices, block))]
    return replace(study, blocks=blocks)


def _choices(word: str) -> list[str]:
    name, _, values = word.partition("=")
    return [word] if "[" in values else [f"{name}={value}" for value in values.split(",")]


def override(config: T, words: Sequence[str]) -> T:
    """A finished configuration with some values replaced: ``evaluation.probe_epochs=500``.

    Raises:
        ConfigurationError: If a word is misspelt or has a value of the wrong type.
    """
    with one_line_errors():
        merged = OmegaConf.structured(config)
        for word in spelt(words, type(config)):
            changed = OverridesParser.create().parse_override(word)
            OmegaConf.update(merged, changed.key_or_group, changed.value())
        return cast(T, OmegaConf.to_object(merged))


def to_object(config: DictConfig | dict[str, Any], kind: type[T]) -> T:
    """Turn a resolved configuration into its dataclass, checking names and types."""
    with one_line_errors():
        merged = OmegaConf.merge(OmegaConf.structured(kind), config)
        return cast(T, OmegaConf.to_object(merged))


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read a configuration that is complete in itself.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigurationError: If it is not a configuration of this kind.
    """
    try:
        content = OmegaConf.create(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, YAMLError, AssertionError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, DictConfig):
        raise ConfigurationError(f"cannot read {path}: it holds no settings")
    try:
        return to_object(content, kind)
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error


def to_yaml(config: object) -> str:
    """A dataclass as YAML, for ``read_yaml``."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


@contextmanager
def hydra_ready(start: Start, words: Sequence[str]) -> Iterator[GlobalHydra]:
    """Hydra with our groups, for some words; its global state is as before afterwards."""
    schema.register()
    ready = initialize_config_dir(str(start.folder), version_base="1.3")
    with ready, one_line_errors(words, start):
        yield GlobalHydra.instance()


@contextmanager
def one_line_errors(words: Sequence[str] = (), start: Start | None = None) -> Iterator[None]:
    """Say what Hydra and OmegaConf complain about in one line, with the choices there are."""
    try:
        yield
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        text = f"{group}={choice}: choose one of {', '.join(error.options or ())}"
        if group == "hydra/launcher":
            text += "; others come with their package, such as hydra-submitit-launcher"
        raise ConfigurationError(text) from error
    except ConfigCompositionException as error:
        unknown = re.match(r"Could not override '([^']+)'", str(error))
        if unknown is None or start is None:
            raise ConfigurationError(_one_line(error)) from error
        raise ConfigurationError(_unknown_key(unknown[1], words, start)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(_one_line(error)) from error


def _unknown_key(key: str, words: Sequence[str], start: Start) -> str:
    """Tell which keys there are where one was looked for in vain."""
    # The choices of groups decide which keys there are, as loss=iot has other ones than loss=dbot.
    groups = [word for word in words if re.match(r"[a-z]+=", word) and not word.startswith(key)]
    parent = key.rpartition(".")[0]
    with suppress(HydraException, OmegaConfBaseException):
        config = compose(start.name, overrides=groups)
        node = OmegaConf.select(config, parent) if parent else config
        if isinstance(node, DictConfig):
            where = parent or "the configuration"
            text = f"{key}: no such setting; {where} has {', '.join(map(str, node))}"
            # Lightning has many more flags than the ones with a value of ours.
            return text + f"; add other flags of Lightning as +{key}" * (parent == "trainer")
    return f"{key}: no such setting"


def _one_line(error: Exception) -> str:
    """The message and its cause, without the hints that OmegaConf adds for programmers."""
    texts = [str(error)]
    if error.__cause__ is not None and str(error.__cause__) not in texts[0]:
        texts.append(str(error.__cause__))
    lines = [line.strip() for text in texts for line in text.splitlines()]
    noise = ("full_key:", "object_type=", "reference_type=", "See https:")
    return "; ".join(line for line in lines if line and not line.startswith(noise))


# --- the settings of a loss ----------------------------------------------------------------------

# Those that are not arguments of its class; ``target`` in files of earlier versions.
_ABOUT = ("name", "_target_", "target", "sharpness")


def loss_parameters(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a loss's class.

    Example:
        >>> loss_parameters({"name": "iot", "_target_": "tricouple.IOT", "epsilon": 0.1})
        {'epsilon': 0.1}
    """
    return {name: value for name, value in loss.items() if name not in _ABOUT}


def sharpness_of(loss: Mapping[str, Any]) -> float | None:
    """The sharpness c of a loss, 1/(τε), 1/ε or 1/τ; None if it has neither τ nor ε.

    Example:
        >>> sharpness_of({"temperature": 0.5, "epsilon": 0.1}), sharpness_of({"eps": 1e-4})
        (20.0, None)
    """
    names = ("temperature", "epsilon", "epsilon_pos", "regularisation")
    factors = [float(loss[name]) for name in names if name in loss]
    return float(f"{1 / math.prod(factors):.4g}") if factors else None


def loss_words(loss: Mapping[str, Any]) -> list[str]:
    """A loss in names of folders and records.

    Example:
        >>> loss_words({"name": "iot", "epsilon": 0.1}), loss_words({"name": "vicreg"})
        (['iot', 'c10'], ['vicreg'])
    """
    sharpness = sharpness_of(loss)
    return [loss["name"], *([] if sharpness is None else [f"c{sharpness:g}"])]


def build_loss(loss: Mapping[str, Any]) -> ContrastiveLoss:
    """The loss that settings describe.

    Raises:
        ValueError: If it is none of ours, or its class does not take the settings.

    Example:
        >>> build_loss({"name": "iot", "_target_": "tricouple.IOT", "epsilon": 0.1}).epsilon
        0.1
    """
    target = loss.get("_target_")
    known = {entry.target for entry in LOSSES.values()} - {None}
    if target not in known:  # a configuration can come from anywhere, and names what is called
        raise ValueError(
            f"loss={loss['name']}: {target} is not built from a configuration: loss._target_ can "
            f"be {', '.join(sorted(map(str, known)))}; add a loss of your own to "
            "tricouple_lab.names"
        )
    try:
        criterion = instantiate({"_target_": target, **loss_parameters(loss)}, _recursive_=False)
    except InstantiationException as error:
        raise ValueError(f"loss={loss['name']}: {error.__cause__ or error}") from error
    found = cast("ContrastiveLoss", criterion)
    found.group = "world"  # processes of one training share each batch
    return found


# --- completion by the Tab key --------------------------------------------------------------------


SHELLS = ("bash", "zsh")

_BASH = """\
# Tab completion of tricouple in bash: eval "$(tricouple --completion bash)"
_tricouple() {{
    local line=${{COMP_LINE:0:COMP_POINT}} words
    local word=${{line##* }}
    case ${{line#* }} in
{cases}
    *) words="{commands}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    # bash takes = for the end of a word.
    COMPREPLY=("${{COMPREPLY[@]#"${{word%%=*}}="}}")
    [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace 2> /dev/null
    return 0
}}
complete -o default -F _tricouple tricouple  # by default, names of files
"""

_ZSH = """\
#compdef tricouple
# Tab completion of tricouple in zsh: eval "$(tricouple --completion zsh)"
_tricouple() {{
    local -a offered
    case "${{words[2]}} " in
{cases}
    *) offered=( {commands} ) ;;
    esac
    compadd -- ${{offered:#*=}} && return
    compadd -S '' -- ${{(M)offered:#*=}} || {{ compset -P '*='; _files }}
}}
compdef _tricouple tricouple
"""


def script(shell: str, commands: Mapping[str, Sequence[str]]) -> str:
    """The completion of a shell, one of ``SHELLS``, for commands and the options of each."""
    offered = {name: list(options) for name, options in commands.items()}
    for start in STARTS.values():
        offered[start.name] += [
            f"{g}={choice}" for g, own in start.groups.items() for choice in own
        ]
        offered[start.name] += [f"{name}=" for name in settings(start.kind)]
    form = '    "{} "*) words="{} " ;;' if shell == "bash" else '    "{} "*) offered=( {} ) ;;'
    cases = "\n".join(form.format(name, " ".join(words)) for name, words in offered.items())
    whole = _BASH if shell == "bash" else _ZSH
    return whole.format(cases=cases, commands=" ".join(["", *offered, "--help", "--version"]))


def settings(kind: type) -> list[str]:
    """The single settings of a command, as of its defaults.

    Example:
        >>> from tricouple_lab.conf.schema import Train
        >>> settings(Train)[:2]
        ['data.name', 'data.root']
    """

    def names(values: object, prefix: str) -> list[str]:
        if not isinstance(values, dict):
            return [prefix]
        return [n for key, value in values.items() for n in names(value, f"{prefix}.{key}")]

    found = vars(configure([], kind))
    plain = {key: getattr(value, "__dict__", value) for key, value in found.items()}
    return [name for key, value in plain.items() for name in names(value, key)]
