"""open_clip: a loss of image and text features at the scale that the model learns."""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tricouple.adapters import for_any_batch, pairs_before
from tricouple.checks import Labels
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.both_directions import BothDirections
from tricouple.numeric import compute_dtype


class ClipLoss(nn.Module):
    """A loss in the place of open_clip's ``ClipLoss``: images to texts and back.

    The sharpness c = 1/(τε) is the ``logit_scale`` of the call, which receives its gradient; the
    criterion's own temperature is not used. ``ClipLoss(InfoNCE())`` is open_clip's, to rounding.
    ``install`` puts it into open_clip's training program.

    Args:
        criterion: A loss of tricouple with a temperature; its ``empty`` becomes ``"zero"``.
        world_size: With more than one process the loss is that of the features of all of them,
            as with ``group="world"`` (there: ``local_loss`` and ``gather_with_grad`` both on).

    Example:
        >>> from tricouple import NegMMIOT
        >>> criterion = ClipLoss(NegMMIOT())
        >>> images, texts = torch.randn(4, 3), torch.randn(4, 3)
        >>> criterion(images, texts, logit_scale=torch.tensor(14.3)).shape
        torch.Size([])
    """

    def __init__(self, criterion: ContrastiveLoss, world_size: int = 1) -> None:
        super().__init__()
        if for_any_batch(criterion, together=world_size > 1).scale is None:
            raise ValueError(
                f"{type(criterion).__name__} has no temperature that the model's logit_scale could "
                "set: use another loss"
            )
        self.both_directions = BothDirections(criterion)
        self.world_size = world_size

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        ids: Labels | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of features, shape (n, d) each; row i of both belongs together.

        Args:
            image_features: Images; they need not be normalised.
            text_features: Texts.
            logit_scale: c, as the model exponentiated it.
            logit_bias: Without effect on a softmax or a plan; ``SigLIP`` has its own.
            output_dict: Whether to return ``{"contrastive_loss": loss}``.
            ids: One integer per row, shape (n,), equal on rows of one image or of equal captions;
                also over processes.
            pairs: Instead, weights of the pairs, (n, n), as in every loss.
        """
        n, problem = len(image_features), None
        if len(text_features) != n:
            problem = (
                f"image_features has {n} rows, text_features {len(text_features)}: row i of both "
                "must belong together"
            )
        criterion = self.both_directions.criterion
        if logit_bias is not None and hasattr(criterion, "bias"):
            problem = (
                f"{type(criterion).__name__} has its own bias, so logit_bias would be without "
                "effect: leave it out, or use open_clip's SigLipLoss"
            )
        first = pairs_before(criterion, n, problem)
        if ids is None and pairs is None:
            ids = torch.arange(first, first + n, device=image_features.device)
        scale = torch.as_tensor(logit_scale)
        scale = scale.to(compute_dtype(scale.dtype))  # half precision has too few digits
        sides = image_features, text_features
        loss: Tensor = self.both_directions(*sides, ids, sharpness=scale, pairs=pairs)
        if logit_bias is not None:
            loss = loss + 0.0 * logit_bias.sum()  # gives the parameter a gradient
        return {"contrastive_loss": loss} if output_dict else loss


def install(program: Any, criterion: ContrastiveLoss) -> None:
    """Let open_clip's training program train with a loss of tricouple.

    It replaces ``create_loss`` of open_clip 3, or the loss of the task that ``create_task`` of
    open_clip 4 makes::

        import open_clip_train.main as program

        install(program, NegMMIOT())
        program.main(["--model", "RN50", ...])

    Args:
        program: The module ``open_clip_train.main``.
        criterion: A loss of tricouple with a temperature.

    Raises:
        ValueError: If the program has neither function; while it runs, if its options ask for
            another loss than ``ClipLoss`` (SigLIP, CoCa, distillation).
    """
    ClipLoss(criterion)  # refuses what is no such loss before the program starts
    if hasattr(program, "create_task"):
        create_task = program.create_task

        def task_with_loss(*args: Any, **options: Any) -> Any:
            task = create_task(*args, **options)
            task.loss = _replaced(getattr(task, "loss", None), criterion)
            return task

        program.create_task = task_with_loss
    elif hasattr(program, "create_loss"):
        create_loss = program.create_loss
        program.create_loss = lambda args: _replaced(create_loss(args), criterion)
    else:
        raise ValueError(
            f"{getattr(program, '__name__', program)} has neither create_loss nor create_task: "
            "pass the module open_clip_train.main, before its main() is called"
        )


def _replaced(loss: Any, criterion: ContrastiveLoss) -> ClipLoss:
    if type(loss).__name__ != "ClipLoss":
        raise ValueError(
            f"open_clip's options ask for {type(loss).__name__}: {type(criterion).__name__} can "
            "replace ClipLoss alone, leave out --siglip, --distill and CoCa models"
        )
    return ClipLoss(criterion, dist.get_world_size() if dist.is_initialized() else 1)
