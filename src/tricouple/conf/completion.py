"""Tab completion: a script that knows all commands, options, settings and choices by heart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tricouple.conf.compose import configure
from tricouple.conf.words import STARTS

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
        >>> from tricouple.conf.schema import Train
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
