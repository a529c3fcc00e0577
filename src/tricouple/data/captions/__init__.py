"""Captioned images of any format: checked, decoded once, tokenised and batched."""

from tricouple.data.captions.load import Source, load
from tricouple.data.captions.samples import PairBatch, PairSamples
from tricouple.data.captions.sets import CaptionData, CaptionedImages
from tricouple.data.captions.tokens import Tokens, tokenise

__all__ = [
    "CaptionData",
    "CaptionedImages",
    "PairBatch",
    "PairSamples",
    "Source",
    "Tokens",
    "load",
    "tokenise",
]
