"""What a report shows of a sentence encoder: nearest texts, confused classes, a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.data.texts import Texts
from tricouple.evaluation.evaluate import MAPPED, packed
from tricouple.evaluation.probe import nearest_mean

ANSWERS = 4
CONFUSED = 12  # pairs of classes, and classes of a map: as many as can be told apart
DIMENSIONS = 50  # of a map before t-SNE: what is dropped is noise, and the file stays small

# Of one kind of features: of the training texts and of those that are measured, each column (n, d).
Embedded = tuple[Sequence[Tensor], Sequence[Tensor]]


def draw_gallery(
    texts: tuple[Texts, Texts],
    features: Mapping[str, Embedded],
    classes: Sequence[str],
    count: int,
) -> bytes:
    """Pick what the report shows; the same texts for every run.

    Args:
        texts: Those of the training, and those that are measured.
        features: Before the head (``penultimate``) and after it (``embedding``).
        classes: Names of the classes; none of pairs.
        count: How many texts to show with their nearest ones.

    Returns:
        An archive of arrays, for ``tricouple report``.
    """
    train, test = texts
    known, unseen = features["embedding"]
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    queries = order[:count]
    if classes:
        arrays = _nearest(known[0], train.texts, unseen[0][queries])
        found = arrays.pop("places")
        predicted = nearest_mean(known[0], train.labels, unseen[0])[0]
        arrays |= {
            "query_labels": test.labels[queries].numpy(),
            "answer_labels": train.labels[found].numpy(),
            **_confused(test, predicted, len(classes)),
        }
        shown = _shown_classes(arrays, test.labels)
        mapped = order[torch.isin(test.labels[order], shown)][:MAPPED]
        labels = torch.searchsorted(shown, test.labels[mapped])
        names = [classes[code] for code in shown.tolist()]
        parts = {kind: own[1][0][mapped] for kind, own in features.items()}
    else:
        arrays = _nearest(unseen[1], test.answers, unseen[0][queries])
        found = arrays.pop("places")
        arrays["right"] = (test.labels[found] == test.labels[queries][:, None]).numpy()
        mapped = order[: MAPPED // 2]
        labels = torch.arange(2).repeat_interleave(len(mapped))
        names = ["texts", "their pairs"]
        parts = {
            kind: torch.cat([column[mapped] for column in own[1]]) for kind, own in features.items()
        }
    arrays |= {
        "classes": np.array(classes, dtype=str),
        "queries": np.array([test.texts[place] for place in queries], dtype=str),
        "map_labels": labels.numpy(),
        "map_names": np.array(names, dtype=str),
        **{f"map_{kind}": reduced(part).half().numpy() for kind, part in parts.items()},
    }
    return packed(arrays)


def _nearest(items: Tensor, names: Sequence[str], queries: Tensor) -> dict[str, np.ndarray]:
    z, w = (normalize(part.double(), dim=1) for part in (queries, items))
    found = (z @ w.T).topk(min(ANSWERS, len(w)), 1)
    answers = [[names[place] for place in row] for row in found.indices.tolist()]
    return {
        "places": found.indices.numpy(),
        "answers": np.array(answers, dtype=str),
        "scores": found.values.numpy(),
    }


def _confused(test: Texts, predicted: Tensor, n_classes: int) -> dict[str, np.ndarray]:
    """Which class is taken for which most often, how often, of how many, and a text for each."""
    pairs = test.labels * n_classes + predicted
    counts = pairs.bincount(minlength=n_classes**2).reshape(n_classes, n_classes)
    wrong = counts.clone().fill_diagonal_(0).flatten()
    top = wrong.argsort(descending=True, stable=True)[:CONFUSED]
    top = top[wrong[top] > 0]
    first = [int((pairs == pair).nonzero()[0, 0]) for pair in top]
    return {
        "confused": torch.stack([top // n_classes, top % n_classes], 1).numpy(),
        "confused_count": wrong[top].numpy(),
        "confused_of": counts.sum(1)[top // n_classes].numpy(),
        "confused_text": np.array([test.texts[place] for place in first], dtype=str),
    }


def _shown_classes(arrays: Mapping[str, np.ndarray], labels: Tensor) -> Tensor:
    """The classes that are confused most, then others; in ascending order."""
    first = dict.fromkeys([*arrays["confused"].flatten().tolist(), *labels.unique().tolist()])
    return torch.tensor(sorted(list(first)[:CONFUSED]))


def reduced(features: Tensor) -> Tensor:
    """Unit vectors in their leading dimensions, which keep their cosines.

    Example:
        >>> z = normalize(torch.randn(9, 60), dim=1)
        >>> torch.allclose(reduced(z) @ reduced(z).T, z @ z.T, atol=1e-5)
        True
    """
    z = normalize(features.float(), dim=1)
    directions: Tensor = torch.linalg.svd(z, full_matrices=False)[2][:DIMENSIONS]
    return z @ directions.T
