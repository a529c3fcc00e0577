"""Captions as tokens of CLIP's own byte-pair encoding, which open_clip brings along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.torchvision_ops import declare_missing

if TYPE_CHECKING:
    from open_clip import SimpleTokenizer


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokenised texts.

    Attributes:
        ids: int32 of shape (n, context length), zero after the end of a text.
        truncated: How many texts were too long and lost their end.
        first_truncated: The first of them; empty if there is none.
    """

    ids: Tensor
    truncated: int
    first_truncated: str


def tokenise(texts: Sequence[str], context_length: int) -> Tokens:
    """Tokens of texts, cut to the context length.

    Example:
        >>> tokens = tokenise(["a dog", "dog " * 9], context_length=6)
        >>> tokens.ids.shape, tokens.truncated
        (torch.Size([2, 6]), 1)
    """
    tokenizer = _tokenizer()
    ids = torch.zeros(len(texts), context_length, dtype=torch.int32)
    truncated: list[str] = []
    for row, text in enumerate(texts):
        found = [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]
        if len(found) > context_length:
            truncated.append(text)
            found = [*found[: context_length - 1], tokenizer.eot_token_id]
        ids[row, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return Tokens(ids, len(truncated), truncated[0] if truncated else "")


@cache
def _tokenizer() -> SimpleTokenizer:
    declare_missing()
    from open_clip import SimpleTokenizer

    return SimpleTokenizer()
