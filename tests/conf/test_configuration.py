"""The configuration: the paper's values, checked types, and errors that list the choices."""

import pytest

from tricouple.conf.compose import (
    STARTS,
    ConfigurationError,
    configure,
    override,
    read_yaml,
    to_yaml,
)
from tricouple.conf.schema import Train
from tricouple.data.images import NAMES
from tricouple.experiments.runs.loss import build_loss, sharpness_of

LOSSES = STARTS[Train].losses


def config(*words: str) -> Train:
    return configure(words, Train)


# --- the paper's settings (appendix, "SCL and UCL setups") ---------------------------------------


@pytest.mark.parametrize(
    ("data", "epochs"),
    [("mnist", 100), ("svhn", 100), ("cifar10", 400), ("cifar100", 400), ("tiny_imagenet", 400)],
)
def test_scale_paper_trains_as_the_paper_does(data, epochs):
    found = config("scale=paper", f"data={data}")
    training, evaluation = found.training, found.evaluation
    assert training.epochs == epochs
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (256, 5e-3, 1e-5)
    assert (evaluation.probe_learning_rate, evaluation.probe_epochs) == (1e-3, 500)
    assert (evaluation.probe_batch_size, evaluation.probe_weight_decay) == (256, 0.0)
    assert evaluation.neighbours == 20
    assert (found.data.train_size, found.data.validation_size) == (None, 0)
    assert found.backbone.head_dim is None  # the number of classes


@pytest.mark.parametrize(
    ("loss", "values", "sharpness"),
    [
        ("neg_mmiot", {"temperature": 0.1, "epsilon": 0.1, "n_iters": 10}, 100),
        ("pushpull", {"temperature": 0.1, "epsilon_pos": 0.1, "epsilon_neg": 0.1}, 100),
        ("iot", {"epsilon": 0.1, "uniformity": 0.0, "n_iters": 10}, 10),
        ("iot_uniformity", {"epsilon": 0.1, "uniformity": 0.2}, 10),
        ("infonce", {"temperature": 0.1}, 10),
        ("invaspread", {"temperature": 0.1}, 10),
        ("vicreg", {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}, None),
        ("byol", {"momentum": 0.996}, None),
    ],
)
def test_scale_paper_has_the_paper_s_losses(loss, values, sharpness):
    found = config("scale=paper", f"loss={loss}").loss
    assert {name: found[name] for name in values} == pytest.approx(values)
    assert sharpness_of(found) == sharpness


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("vicreg", "byol")])
def test_one_word_sets_the_sharpness_of_every_loss(loss):
    found = config(f"loss={loss}", "loss.sharpness=30").loss
    assert sharpness_of(found) == pytest.approx(30, rel=1e-3)


def test_a_temperature_of_one_s_own_is_what_the_sharpness_is_read_from():
    found = config("loss=neg_mmiot", "loss.temperature=0.5").loss
    assert (found["temperature"], sharpness_of(found)) == (0.5, 20)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "byol"])
def test_every_loss_can_be_built_and_is_as_sharp_as_the_others_at_scale_cpu(name):
    found = config(f"loss={name}").loss
    assert sharpness_of(found) == (None if name == "vicreg" else 10)
    assert build_loss(found).empty == "zero"


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_has_a_configuration(name):
    assert config(f"data={name}").data.name == name


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["loss=foo"], "loss=foo: choose one of byol, dbot, infonce, invaspread, iot"),
        (["data=imagnet"], "data=imagnet: choose one of cifar10, cifar100, digits, folder, mnist"),
        (["backbone=resnet19"], "choose one of resnet18, resnet34, resnet50, vit_b16"),
        (["scale=huge"], "scale=huge: choose one of cpu, paper, smoke"),
        (["dta=mnist"], "dta: no such setting; the configuration has data, setting, loss"),
        (["training.epoch=3"], "training.epoch: no such setting; training has epochs, batch_size"),
        (["loss=iot", "loss.temperature=1"], "loss.temperature: no such setting; loss has name"),
        (["trainer.flag=1"], "add other flags of Lightning as +trainer.flag"),
        (["training.epochs=many"], "'many' of type 'str' could not be converted to Integer"),
        (["evaluation.figures=maybe"], "'maybe' is not a valid bool"),
        (["seed"], "missing EQUAL"),
        (["seed=0,1"], "add --multirun"),
    ],
)
def test_wrong_words_are_one_line_with_the_choices(words, complaint):
    with pytest.raises(ConfigurationError) as refused:
        configure(words, Train)
    text = str(refused.value)
    assert complaint in text
    assert "\n" not in text
    assert "hydra" not in text


def test_a_configuration_survives_its_file(tmp_path):
    before = config("data=cifar10", "loss=pushpull", "+trainer.gradient_clip_val=1.0")
    (tmp_path / "config.yaml").write_text(to_yaml(before))
    assert read_yaml(tmp_path / "config.yaml", Train) == before


@pytest.mark.parametrize("text", ["", "a: [1", "- 1", "data: 3", "seed: one"])
def test_a_file_that_is_no_configuration_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.yaml"):
        read_yaml(tmp_path / "config.yaml", Train)


def test_values_of_a_finished_configuration_can_be_replaced():
    found = override(config(), ["evaluation.probe_epochs=7"])
    assert found.evaluation.probe_epochs == 7
    with pytest.raises(ConfigurationError, match="probe_epoch"):
        override(config(), ["evaluation.probe_epoch=7"])
