"""open_clip: a loss of image and text features at the scale that the model learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tricouple.adapters import for_any_batch, pairs_before
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.both_directions import BothDirections


class ClipLoss(nn.Module):
    """A loss in the place of open_clip's ``ClipLoss``: images to texts and back.

    The sharpness c = 1/(τε) is the ``logit_scale`` of the call, which receives its gradient; the
    criterion's own temperature is not used. ``ClipLoss(InfoNCE())`` is open_clip's, to rounding.
    A line puts it into ``open_clip_train``::

        open_clip_train.main.create_loss = lambda args: ClipLoss(NegMMIOT(), args.world_size)

    Args:
        criterion: A loss of tricouple with a temperature; its ``empty`` becomes ``"zero"``.
        world_size: With more than one process the loss is that of the features of all of them.
            Each returns the value of the whole batch, and gradients whose mean over processes is
            exact (there: ``local_loss`` and ``gather_with_grad`` both on).

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
    ) -> Tensor | dict[str, Tensor]:
        """The loss of features, shape (n, d) each; row i of both belongs together.

        Args:
            image_features: Images; they need not be normalised.
            text_features: Texts.
            logit_scale: c, as the model exponentiated it.
            logit_bias: Changes nothing: no softmax and no plan sees what is added to all scores.
            output_dict: Whether to return ``{"contrastive_loss": loss}``.
        """
        n, problem = len(image_features), None
        if len(text_features) != n:
            problem = (
                f"image_features has {n} rows, text_features {len(text_features)}: row i of both "
                "must belong together"
            )
        first = pairs_before(self.both_directions.criterion, n, problem)
        pairs = torch.arange(first, first + n, device=image_features.device)
        scale = torch.as_tensor(logit_scale).float()
        loss: Tensor = self.both_directions(image_features, text_features, pairs, sharpness=scale)
        if logit_bias is not None:
            loss = loss + 0.0 * logit_bias.sum()  # a path: no parameter may go unused
        return {"contrastive_loss": loss} if output_dict else loss
