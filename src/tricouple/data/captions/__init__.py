"""Captioned images of any format: checked, decoded once, tokenised and batched."""

from tricouple.data.captions.readers import Source, files, load, root_of
from tricouple.data.captions.sets import (
    CaptionData,
    CaptionedImages,
    PairBatch,
    PairSamples,
    Tokens,
    tokenise,
)

__all__ = [
    "CaptionData",
    "CaptionedImages",
    "PairBatch",
    "PairSamples",
    "Source",
    "Tokens",
    "files",
    "load",
    "root_of",
    "tokenise",
]
