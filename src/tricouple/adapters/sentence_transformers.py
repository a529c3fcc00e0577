"""sentence-transformers: losses for its trainer, plain and with gradient caching."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.adapters import adapted_library, for_any_batch, pairs_before
from tricouple.losses.base import ContrastiveLoss

with adapted_library():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.losses.gradcache import (
        CachedLossMixin,
        has_static_embedding_input,
    )
    from sentence_transformers.base.losses.merged_forward import embed_columns

Features = dict[str, Any]


class SentenceLoss(nn.Module):
    """A loss in the place of ``MultipleNegativesRankingLoss``, or of one of classes.

    Columns (anchor, positive[, negative, …]) without labels: each anchor has its own positive, and
    all other positives and negatives of the batch as negatives.
    ``SentenceLoss(model, InfoNCE(1/scale))`` is ``MultipleNegativesRankingLoss(model, scale)``, to
    rounding. A text that occurs twice is a negative of itself: use ``BatchSamplers.NO_DUPLICATES``.
    With columns of negatives use ``marginals="target"``: uniform marginals give mass as positives
    to negatives, too. One column with integer labels (``BatchSamplers.GROUP_BY_LABEL``): texts of
    one class are positives.

    Args:
        model: The ``SentenceTransformer`` that is trained.
        criterion: A loss of tricouple; its ``empty`` becomes ``"zero"``.
        gather_across_devices: Whether the loss is that of the texts of all processes.

    Example:
        >>> from sentence_transformers.sentence_transformer.modules import BoW
        >>> from tricouple import NegMMIOT
        >>> model = SentenceTransformer(modules=[BoW(["red", "green", "car", "tree"])])
        >>> loss = SentenceLoss(model, NegMMIOT(temperature=1.0, epsilon=0.1))
        >>> columns = [["red car", "green tree"], ["car", "tree"]]
        >>> loss([model.preprocess(texts) for texts in columns]).shape
        torch.Size([])
    """

    def __init__(
        self,
        model: SentenceTransformer,
        criterion: ContrastiveLoss,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.criterion = for_any_batch(criterion, together=gather_across_devices)
        self.gather_across_devices = gather_across_devices

    def forward(
        self, sentence_features: Iterable[Features], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch, as the trainer calls it: features of each column, labels if any."""
        try:
            return self._loss(list(sentence_features), labels)
        except KeyError as error:
            if error.args != ("sentence_embedding",):
                raise
            raise ValueError(
                "the model gives no sentence embedding, only tokens: add a Pooling module, "
                "SentenceTransformer(modules=[transformer, Pooling(dimension)])"
            ) from error

    def _loss(self, columns: list[Features], labels: Tensor | None) -> Tensor:
        return self.compute_loss_from_embeddings(embed_columns(self.model, columns), labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of the embeddings of each column, shape (n, d) each."""
        anchors, *candidates = embeddings
        if not candidates:
            return self.criterion(anchors, None if labels is None else labels.reshape(-1))
        for number, column in enumerate(candidates, 1):
            if len(column) != len(anchors):
                raise ValueError(
                    f"column {number} has {len(column)} texts, the anchors are {len(anchors)}: "
                    "every anchor needs one text in each column"
                )
        if labels is not None and labels.is_floating_point():
            raise ValueError(
                f"labels of pairs are {labels.dtype}, as if they were scores: keep the pairs that "
                "belong together and remove the column"
            )
        # Positive i has the identity of anchor i, and a negative one of its own.
        references = torch.cat(candidates)
        first = pairs_before(self.criterion, len(references))
        identities = torch.arange(first, first + len(references), device=references.device)
        own = identities[: len(anchors)]
        return self.criterion(anchors, own, ref_emb=references, ref_labels=identities)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        gathered = self.gather_across_devices
        return {"criterion": repr(self.criterion), "gather_across_devices": gathered}

    @property
    def citation(self) -> str:
        """What the model card cites."""
        return """
@misc{tricouple,
    title = {Multi-Marginal Inverse Optimal Transport for Contrastive Learning Via Explicit
        Anchor-Positive-Negative Coupling},
    author = {Nguyen, Ngoc-Hai and Nguyen, Thuan and Ishwar, Prakash and Aeron, Shuchin}
}
"""


class CachedSentenceLoss(CachedLossMixin, SentenceLoss):  # type: ignore[misc]
    """``SentenceLoss`` of batches whose activations do not fit into memory.

    Value and gradient are the same. Texts are embedded twice, in mini-batches: without activations
    for the gradient by the embeddings, then for that by the parameters (Gao et al. 2021,
    "GradCache").

    Args:
        model, criterion, gather_across_devices: As in ``SentenceLoss``.
        mini_batch_size: How many texts are embedded at once.

    Example:
        >>> from sentence_transformers.sentence_transformer.modules import BoW
        >>> from tricouple import NegMMIOT
        >>> model = SentenceTransformer(modules=[BoW(["red", "car"])])
        >>> loss = CachedSentenceLoss(model, NegMMIOT(1.0, 0.1), mini_batch_size=1)
        >>> loss.get_config_dict()["mini_batch_size"]
        1
    """

    def __init__(
        self,
        model: SentenceTransformer,
        criterion: ContrastiveLoss,
        mini_batch_size: int = 32,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(model, criterion, gather_across_devices)
        checks.count("mini_batch_size", mini_batch_size)
        if has_static_embedding_input(model):
            raise ValueError(
                "a StaticEmbedding cannot be split into mini-batches, and needs no caching: use "
                "SentenceLoss"
            )
        self.mini_batch_size = mini_batch_size
        self._slopes: list[tuple[Tensor, Tensor]] = []  # by parameters of the criterion

    def _loss(self, columns: list[Features], labels: Tensor | None) -> Tensor:
        loss: Tensor = CachedLossMixin.forward_cached(self, columns, labels)
        for parameter, slope in self._slopes:  # adds 0, with this gradient
            loss = loss + (slope * (parameter - parameter.detach())).sum()
        return loss

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the mini-batches of each column; their gradients too, ``with_backward``."""
        columns = [torch.cat(mini_batches) for mini_batches in reps]
        loss, self._slopes = self.compute_loss_from_embeddings(columns, labels), []
        if not with_backward:
            return loss
        learnt = [p for p in self.criterion.parameters() if p.requires_grad]
        if learnt and hasattr(self.calculate_loss, "matryoshka_weights"):
            raise ValueError(
                "MatryoshkaLoss of a cached loss does not weigh the gradient of a learnable "
                "temperature: use SentenceLoss, or a fixed temperature"
            )
        if learnt:
            slopes = torch.autograd.grad(loss, learnt, retain_graph=True, allow_unused=True)
            self._slopes = [(p, x) for p, x in zip(learnt, slopes, strict=True) if x is not None]
        loss.backward(inputs=[rows for mini_batches in reps for rows in mini_batches])
        return loss.detach()

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        return {**super().get_config_dict(), "mini_batch_size": self.mini_batch_size}
