"""How much was computed, beside what the paper computed: whoever compares numbers has to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tricouple.report.vision import paper
from tricouple.report.vision.groups import Group, blocks_of
from tricouple.report.vision.names import DATA
from tricouple.report.words import listing


def budget(groups: Iterable[Group]) -> Iterator[str]:
    """Say for each data set how the runs differ from the paper's; nothing where they do not."""
    done = [own for own in groups if own.finished]
    clauses: dict[str, list[str]] = {}
    for data in dict.fromkeys(block.data for block in blocks_of(done)):
        own = [group for group in done if group.block.data == data]
        if data in paper.EPOCHS and not all(map(paper.same_budget, own)):
            ours = listing(sorted(set(map(_words, own))))
            theirs = f"{paper.EPOCHS[data]} epochs on {paper.IMAGES[data]} images"
            clauses.setdefault(f"{ours} here, {theirs} in the paper", []).append(
                DATA.get(data, data)
            )
    if clauses:
        parts = "; ".join(f"{listing(names)}: {text}" for text, names in clauses.items())
        yield (
            f"The budget is not the paper's ({parts}): its numbers show what is within reach, "
            "not what these runs should have reached."
        )


def _words(own: Group) -> str:
    return f"{own.config.get('epochs')} epochs on {own.images or 'all'} images"
