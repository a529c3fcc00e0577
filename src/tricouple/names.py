"""One table of names: what the command line, result files, tables and pictures call a thing.

A loss has one key (the word after ``loss=``), one class, one name and the sharpness that the paper
gives it. Whoever adds a loss adds a line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LossName:
    """What a loss is called.

    Attributes:
        name: In tables and pictures.
        target: What is called to build it, importable; None for training methods without a loss of
            embeddings.
        paper_sharpness: c = 1/(τε) of the paper's settings, 1/ε or 1/τ where there is only one of
            the two; None where the paper has none. Its image-text table does not state ε of IOT and
            Fused-Gromov: theirs there is that of the public code, c = 100.
    """

    name: str
    target: str | None
    paper_sharpness: float | None = None


# In the order of the paper's tables.
LOSSES = {
    "infonce": LossName("InfoNCE", "tricouple.InfoNCE", 10.0),
    "invaspread": LossName("InvaSpread", "tricouple.InvaSpread", 10.0),
    "iot": LossName("IOT", "tricouple.IOT", 10.0),
    "iot_uniformity": LossName("IOT with uniformity", "tricouple.IOT"),
    "dbot": LossName("DBOT", "tricouple.DBOT"),
    "fused_gromov": LossName("Fused-Gromov", "tricouple.FusedGromov"),
    "pushpull": LossName("PushPull", "tricouple.PushPull", 100.0),
    "neg_mmiot": LossName("Neg-MMIOT", "tricouple.NegMMIOT", 100.0),
    "dbot_published": LossName("DBOT, published code", "tricouple.DBOT"),
    "fused_gromov_published": LossName("Fused-Gromov, published code", "tricouple.FusedGromov"),
    "vicreg": LossName("VICReg", "tricouple.VICReg"),
    "byol": LossName("BYOL", None),
}

SHAPINGS = {"linear": "linear", "log_sigmoid": "log-sigmoid"}


def loss_name(key: str, shaping: str | None = None) -> str:
    """Return the name of a loss, with its ψ if that is not the usual one.

    Example:
        >>> loss_name("pushpull"), loss_name("neg_mmiot", "log_sigmoid"), loss_name("my_loss")
        ('PushPull', 'Neg-MMIOT (log-sigmoid ψ)', 'my_loss')
    """
    name = LOSSES[key].name if key in LOSSES else key
    if shaping in (None, "linear"):
        return name
    return f"{name} ({SHAPINGS.get(str(shaping), shaping)} ψ)"
