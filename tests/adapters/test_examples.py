"""Each example runs, changes few lines of its library's loop, and trains with the loss itself."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tricouple as tc
import tricouple.adapters.open_clip
from processes import in_processes
from tricouple.losses import BothDirections

FOLDER = Path(__file__).parents[2] / "examples"
# Of PyTorch alone.
SHORT = ("bags", "retrieval", "cached_batches", "captions_ids", "three_modalities")
# Of other libraries; one more of PyTorch alone is tested with several processes.
EXAMPLES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"torchrun", *SHORT})


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(adapter: type, seen: list) -> type:
    """The adapter, which keeps what its criterion was called with and what came of it."""

    class Recorded(adapter):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            ours = next(m for m in self.modules() if isinstance(m, BothDirections | tc.NegMMIOT))
            ours.register_forward_hook(
                lambda _, given, named, value: seen.append((given, named, value.detach())),
                with_kwargs=True,
            )

    Recorded.__name__ = adapter.__name__
    return Recorded


def directly(*arguments: torch.Tensor, sharpness=None, **options) -> torch.Tensor:
    """The loss itself; of images and texts at a sharpness, the mean of both directions."""
    if sharpness is None:
        return tc.NegMMIOT(sharpness=10)(*arguments, **options)
    criterion = tc.NegMMIOT(sharpness=float(sharpness))
    images, texts, ids = arguments
    ways = ((images, texts), (texts, images))
    return sum(criterion(one, ids, ref_emb=other, ref_labels=ids) for one, other in ways) / 2


def test_there_is_one_for_each_library():
    assert EXAMPLES == [
        "lightly_simclr",
        "metric_learning_trainer",
        "open_clip_training",
        "sentence_transformers_pairs",
    ]


@pytest.mark.parametrize("name", SHORT)
def test_a_short_example_has_at_most_forty_lines(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", ["bags", "retrieval", "three_modalities"])
def test_a_short_example_shows_what_it_claims(name):
    found = load(name).main()
    before, *_, after = found if name == "bags" else found.values()
    assert after > before + 0.05
    assert after > 0.95


@pytest.mark.parametrize("name", EXAMPLES)
def test_at_most_five_lines_differ_from_the_librarys_own_loop(name):
    lines = (FOLDER / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
    ours = re.compile(
        r"\btc\.|import tricouple|tricouple\.adapters|(TwoView|Metric|Clip|Sentence)Loss\("
    )
    changed = [line for line in lines if "# tricouple" in line]
    assert 3 <= len(changed) <= 5
    assert [line for line in lines if ours.search(line) and line not in changed] == []


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # for their bar
@pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator is found")  # open_clip's loader
@pytest.mark.parametrize(
    ("name", "adapter", "run"),
    [
        ("lightly_simclr", "TwoViewLoss", lambda e, _: e.main(epochs=3, n_images=128)),
        ("metric_learning_trainer", "MetricLoss", lambda e, _: e.main(epochs=1)),
        ("sentence_transformers_pairs", "SentenceLoss", lambda e, _: e.main(epochs=4)),
        ("open_clip_training", "ClipLoss", lambda e, path: e.train(e.demonstration(path, 6))),
    ],
    ids=EXAMPLES[:2] + EXAMPLES[3:] + EXAMPLES[2:3],
)
def test_the_loss_falls_and_is_the_one_called_directly(name, adapter, run, tmp_path):
    example, seen = load(name), []

    def in_a_process_of_its_own(_: int) -> torch.Tensor:
        place = example if hasattr(example, adapter) else tricouple.adapters.open_clip
        setattr(place, adapter, recorded(getattr(place, adapter), seen))
        run(example, tmp_path)
        arguments, options, value = seen[-1]
        torch.testing.assert_close(directly(*arguments, **options).detach(), value)
        return torch.stack([value for _, _, value in seen])

    # Their programs set up logging, seeds and more for the whole process.
    (values,) = in_processes(1, tmp_path, in_a_process_of_its_own)
    third = len(values) // 3
    assert values[-third:].mean() < 0.95 * values[:third].mean()


def test_the_example_of_cached_batches_trains_as_one_without_chunks():
    example = load("cached_batches")
    losses = example.main(steps=3, batch_size=64, chunk_size=16)
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(example.main(steps=3, batch_size=64, chunk_size=64), rel=1e-4)


def test_the_example_of_captions_has_one_identity_for_what_is_equal():
    example = load("captions_ids")
    assert example.identities(example.PAIRS) == [0, 0, 0, 3]
    plain, with_ids = example.main()
    assert plain != pytest.approx(with_ids)
