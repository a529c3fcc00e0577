"""The captions of a run: loaded, tokenised, and the image sets to recognise without examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.conf.schema import Clip
from tricouple.data import captions, images
from tricouple.data.captions import (
    CaptionData,
    CaptionedImages,
    PairSamples,
    Source,
    Tokens,
    tokenise,
)
from tricouple.data.images import ImageSet
from tricouple.data.normalisation import Normalisation
from tricouple.evaluation.features import embed_images, embed_texts
from tricouple.evaluation.geometry import measure_modalities
from tricouple.evaluation.retrieval import in_batches
from tricouple.experiments.clip.method import image_size, normalisation_of

if TYPE_CHECKING:
    from open_clip import CLIP


@dataclass(frozen=True, eq=False)
class Classes:
    """Labelled images whose classes have names."""

    images: ImageSet
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RunCaptions:
    """What a run trains on and is measured on.

    Attributes:
        data: Images and captions.
        tokens: Of the captions of each part, by the part's name.
        zero_shot: Image sets to recognise without examples, by name.
        notes: What was left out or cut; a command says each once.
    """

    data: CaptionData
    tokens: dict[str, Tensor]
    zero_shot: dict[str, Classes]
    notes: tuple[str, ...]

    def part(self, name: str) -> CaptionedImages:
        """The images and captions of a part."""
        found = getattr(self.data, name)
        if found is None:
            raise ValueError(
                f"evaluation.part={name} needs data.{name}, or data.{name}_size above 0"
            )
        assert isinstance(found, CaptionedImages)
        return found

    def samples(self, *, all_captions: bool) -> PairSamples:
        """What an epoch consists of."""
        train = self.data.train
        return PairSamples(train.images, self.tokens["train"], train.owners, all_captions)


def load_captions(config: Clip) -> RunCaptions:
    """Load all that a run needs.

    Raises:
        ValueError: If files are missing or the sizes are not possible.
    """
    data = captions.load(Source(**asdict(config.data)), image_size(config), config.seed)
    length = int(config.model.text.get("context_length", 77))
    tokens = {name: tokenise(part.captions, length) for name, part in _parts(data)}
    notes = [*data.notes, *_cut_note(tokens, length)]
    zero_shot = {}
    if config.evaluation.part == "test":
        for name in config.evaluation.zero_shot:
            zero_shot[name] = _classes(name, config.evaluation.zero_shot_size)
    ids = {name: found.ids for name, found in tokens.items()}
    return RunCaptions(data, ids, zero_shot, tuple(notes))


def check_trainable(config: Clip, found: RunCaptions) -> None:
    """Refuse, before anything is computed, what training could only fail at."""
    checks.one_of("evaluation.part", config.evaluation.part, ("test", "validation"))
    found.part(config.evaluation.part)
    checks.one_of("training.captions", config.training.captions, ("one", "all"))
    checks.count("training.batch_size", config.training.batch_size)
    samples = found.samples(all_captions=config.training.captions == "all")
    if not 2 <= config.training.batch_size <= len(samples):
        raise ValueError(
            f"training.batch_size is {config.training.batch_size}, but there are {len(samples)} "
            f"training images: use between 2 and {len(samples)}"
        )


@dataclass(frozen=True, eq=False)
class HeldOutPairs:
    """Images and captions that are not trained on, followed along training.

    Attributes:
        pairs: The first of them are measured.
        tokens: Of their captions.
        normalisation: Of the images.
        size: How many images to measure, at most.
        batch_size: Pairs to choose from, as in training.
    """

    pairs: CaptionedImages
    tokens: Tensor
    normalisation: Normalisation
    size: int
    batch_size: int

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """Recall@1 in batches, modality gap, alignment, uniformity."""
        model = cast("CLIP", encoder)
        n = min(self.size, len(self.pairs))
        kept = self.pairs.owners < n
        images = embed_images(model, self.pairs.images[torch.arange(n)], self.normalisation)
        texts = embed_texts(model, self.tokens[kept])
        owners = self.pairs.owners[kept]
        found = in_batches(images, texts, owners, self.batch_size)
        geometry = measure_modalities(images, texts, owners).row()
        return {
            "image_to_text": found.image_to_text.at1,
            "text_to_image": found.text_to_image.at1,
            **geometry,
        }


def held_out(config: Clip, found: RunCaptions) -> HeldOutPairs:
    """Some of the validation images, or of the test images if there are none."""
    name = "test" if found.data.validation is None else "validation"
    training = config.training
    return HeldOutPairs(
        found.part(name),
        found.tokens[name],
        normalisation_of(config),
        training.geometry_samples,
        training.batch_size,
    )


def _parts(data: CaptionData) -> Iterator[tuple[str, CaptionedImages]]:
    yield "train", data.train
    if data.validation is not None:
        yield "validation", data.validation
    yield "test", data.test


def _cut_note(tokens: dict[str, Tokens], length: int) -> list[str]:
    """One note on captions that were too long, with the first of them."""
    cut = {name: found for name, found in tokens.items() if found.truncated}
    if not cut:
        return []
    counts = ", ".join(f"{found.truncated} {name}" for name, found in cut.items())
    first = shorten(next(iter(cut.values())).first_truncated, 80, placeholder=" …")
    return [f"captions of more than {length} tokens were cut ({counts}), the first is {first!r}"]


def _classes(name: str, size: int | None) -> Classes:
    """Test images of a set; the same ones for every run."""
    try:
        data = images.load(name)
    except ValueError as error:
        raise ValueError(
            f"evaluation.zero_shot={name}: {error}; or leave it out: evaluation.zero_shot=[]"
        ) from error
    test = data.test
    if test is None or test.labels is None:
        raise ValueError(f"evaluation.zero_shot={name}: there are no labelled images")
    if data.channels != 3:
        raise ValueError(f"evaluation.zero_shot={name}: images must have colours")
    if size is not None and size < len(test):
        test = images.subset(test, size, 0, name="evaluation.zero_shot_size")
    return Classes(test, data.classes)
