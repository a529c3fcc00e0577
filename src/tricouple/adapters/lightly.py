"""lightly: a criterion of two views, called ``criterion(z0, z1)``."""

from torch import Tensor, nn

from tricouple import checks
from tricouple.adapters import for_any_batch
from tricouple.losses.base import ContrastiveLoss
from tricouple.relations import pair_views


class TwoViewLoss(nn.Module):
    """A loss in the place of lightly's ``NTXentLoss``.

    ``TwoViewLoss(InfoNCE(τ))`` is ``NTXentLoss(τ)``, to rounding. As there, a batch of one image
    gives zero.

    Args:
        criterion: A loss of tricouple; its ``empty`` becomes ``"zero"``.
        gather_distributed: Whether the loss is that of the views of all processes, as with
            ``group="world"``.

    Example:
        >>> from tricouple import NegMMIOT
        >>> criterion = TwoViewLoss(NegMMIOT(temperature=1.0, epsilon=0.1))
        >>> criterion(torch.randn(8, 4), torch.randn(8, 4)).shape
        torch.Size([])
    """

    def __init__(self, criterion: ContrastiveLoss, gather_distributed: bool = False) -> None:
        super().__init__()
        self.criterion = for_any_batch(criterion, together=gather_distributed)
        self.gather_distributed = gather_distributed

    def forward(self, out0: Tensor, out1: Tensor, labels: checks.Labels | None = None) -> Tensor:
        """The loss of two views, shape (n, d) each; row i of both belongs to image i.

        With labels, shape (n,), images of one class are positives, as in SupCon.
        """
        embeddings, identities = pair_views(out0, out1, group=self.criterion.group)
        if labels is not None:
            identities = checks.labels("labels", labels, len(out0), out0.device).repeat(2)
        return self.criterion(embeddings, identities)
