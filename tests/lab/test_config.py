"""From words to a configuration: defaults, scales, rows of tables, mistakes."""

from operator import attrgetter

import pytest

from processes import python
from tricouple_lab import names
from tricouple_lab.config.compose import compose, expand, settings, settings_help
from tricouple_lab.config.schema import SCHEMAS
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import make_loss

MISTAKES = {
    "loss=supcon": "use loss=infonce",
    "loss=fused_gromov": "is for clip",
    "loss=neg_mmiott": "nearest: neg_mmiot",
    "epochs=3": "nearest: training.epochs",
    "training.epochz=3": "nearest: training.epochs",
    "training.epochs=many": "expected a whole number",
    "training.learning_rate=fast": "expected a number",
    "training.keep_checkpoint=maybe": "expected true or false",
    "training.optimizer=rmsprop": "choices are adam, adamw, sgd, lars",
    "scale=large": "choices are smoke, cpu, paper",
    "data=cifar": "nearest: cifar10",
    "backbone=resnet": "nearest: resnet",
    "verbose": "key=value",
    "data.train_size=0": "must be at least 1",
    "data.validation_share=1": "must be at least 0 and less than 1",
    "backbone.head_dim=-1": "must be at least 0",
    "backbone.width=0": "must be at least 1",
}


@pytest.mark.parametrize(("word", "part"), MISTAKES.items())
def test_a_mistake_is_one_sentence_with_the_choices_or_the_nearest_name(word, part):
    with pytest.raises(UserError, match=part) as error:
        compose("images", [word])
    assert "\n" not in str(error.value)


def test_a_text_needs_no_quotes():
    for text in ("été (1), [a]: b ${x}", "a=b", " spaces ", "null"):
        assert compose("images", [f"data.root={text}"]).data.root == text


def test_the_command_line_comes_after_the_row_of_the_data_set_after_the_scale():
    smoke = compose("images", ["scale=smoke"])
    assert smoke.training.batch_size == 64
    folder = compose("images", ["scale=smoke", "data=folder"])
    assert (folder.backbone.train, folder.training.batch_size) == ("head", 64)
    own = compose("images", ["data=folder", "backbone.train=scratch", "training.batch_size=8"])
    assert (own.backbone.train, own.training.batch_size) == ("scratch", 8)
    assert compose("images", ["data.train_size=null"]).data.train_size is None
    assert compose("images", ["logger=none"]).logger == []
    assert compose("images", ["trainer.precision=bf16-mixed"]).trainer == {
        "precision": "bf16-mixed"
    }


@pytest.mark.parametrize("task", list(SCHEMAS))
def test_every_row_and_scale_composes_to_a_loss_that_can_be_built(task):
    for kind, table in names.TABLES[task].items():
        for name in table:
            assert compose(task, [f"{kind}={name}"])
    for loss in names.TABLES[task]["loss"]:
        make_loss(compose(task, [f"loss={loss}"]).loss)
    config, text = compose(task, ()), settings_help(task)
    assert f"  training.epochs ({config.training.epochs}): " in text
    for key, item in settings(task).items():
        assert item.metadata["help"], key
        assert f"  {key} (" in text
        assert not (choices := item.metadata["choices"]) or attrgetter(key)(config) in choices


def test_the_scale_of_the_paper_has_its_settings():
    config = compose("images", ["scale=paper", "data=cifar10", "backbone=resnet50"])
    assert (config.training.epochs, config.training.optimizer) == (400, "adam")
    assert (config.training.learning_rate, config.training.weight_decay) == (5e-3, 1e-5)
    assert not config.backbone.head_dim
    paper = make_loss(compose("images", ["scale=paper", "loss=neg_mmiot"]).loss)
    assert paper.sharpness == pytest.approx(100)
    clip = compose("clip", ["scale=paper", "loss=iot"])
    assert (clip.loss["sharpness"], clip.loss["n_iters"], clip.training.epochs) == (100, 5, 35)


def test_comma_lists_are_multiplied_and_texts_are_not_split():
    words = ["loss=iot,infonce", "seed=range(0,3)", "data.root=a, b", "logger=[csv,tensorboard]"]
    combinations = expand(words)
    assert len(combinations) == 6
    assert combinations[1] == ("loss=iot", "seed=1", "data.root=a, b", "logger=[csv,tensorboard]")


def test_names_and_settings_are_read_without_torch():
    code = (
        "import sys; from tricouple_lab.config.compose import compose; compose('images', []);"
        "import tricouple_lab.cli; print('torch' in sys.modules)"
    )
    assert python("-c", code).stdout.strip() == "False"
