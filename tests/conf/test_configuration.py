"""The configuration: the paper's values, checked types, and errors that list the choices."""

import pytest

from tricouple.shaping import Hinge
from tricouple_lab.conf.compose import (
    STARTS,
    ConfigurationError,
    build_loss,
    configure,
    override,
    read_study,
    read_yaml,
    sharpness_of,
    to_yaml,
)
from tricouple_lab.conf.schema import Clip, Train
from tricouple_lab.data.images import NAMES
from tricouple_lab.names import LOSSES


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
    assert found.data.image_size == (32 if data == "tiny_imagenet" else None)  # as its text says


def test_a_transformer_gets_the_images_that_it_was_made_for_at_scale_paper():
    for data in ("mnist", "tiny_imagenet"):
        found = config("scale=paper", f"data={data}", "backbone=vit_b16")
        assert found.data.image_size == 224
    assert config("scale=paper", "data=tiny_imagenet", "data.image_size=64").data.image_size == 64


def test_scale_paper_trains_on_all_of_coco():
    found = configure(["scale=paper", "data=coco"], Clip)
    assert (found.data.train_size, found.data.validation_size) == (None, 0)
    assert configure(["data=coco"], Clip).data.validation_size == 1000


def test_the_paper_s_grid_is_one_word():
    study = read_study("vision_paper", Train)
    names = [{word.split("=")[0]: word.split("=")[1] for word in block} for block in study.blocks]
    assert len({tuple(block.values()) for block in names}) == len(names) == 5 * 2 * 4
    assert {block["data"] for block in names} == {
        "mnist", "svhn", "cifar10", "cifar100", "tiny_imagenet"
    }  # fmt: skip
    assert {block["backbone"] for block in names} == {"resnet18", "resnet34", "resnet50", "vit_b16"}
    assert study.losses == ["infonce", "invaspread", "iot", "pushpull", "neg_mmiot"]
    assert (study.sharpness, study.learning_rates, len(study.seeds)) == ([], [5e-3], 4)
    for block in study.blocks[::9]:  # every set and every backbone
        found = configure([*study.base, *block], Train)
        assert (found.training.batch_size, found.data.validation_size) == (256, 0)
    study = read_study("clip_paper", Clip)
    assert set(study.losses) == {
        "infonce", "iot", "iot_uniformity", "dbot", "fused_gromov", "pushpull", "neg_mmiot"
    }  # fmt: skip
    assert (study.blocks, study.sharpness, len(study.seeds)) == ([["data=coco"]], [], 4)
    found = [configure([*study.base, "data=coco", f"loss={loss}"], Clip) for loss in study.losses]
    assert [sharpness_of(each.loss) for each in found] == [10, 100, 100, 1, 100, 100, 100]
    assert {(each.training.epochs, each.model.name) for each in found} == {(35, "rn50")}


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


@pytest.mark.parametrize(
    "loss", [name for name in STARTS[Train].losses if name not in ("vicreg", "byol")]
)
def test_one_word_sets_the_sharpness_of_every_loss(loss):
    found = config(f"loss={loss}", "loss.sharpness=30").loss
    assert sharpness_of(found) == pytest.approx(30, rel=1e-3)


def test_a_temperature_of_one_s_own_is_what_the_sharpness_is_read_from():
    found = config("loss=neg_mmiot", "loss.temperature=0.5").loss
    assert (found["temperature"], sharpness_of(found)) == (0.5, 20)


def test_a_hinge_has_its_margin_from_a_word():
    found = config("loss=neg_mmiot", "loss.shaping=hinge", "+loss.margin=0.2").loss
    assert build_loss(found).shaping == Hinge(margin=0.2)


@pytest.mark.parametrize("name", sorted({*STARTS[Train].losses} - {"byol"}))
def test_every_loss_can_be_built_and_is_as_sharp_as_the_others_at_scale_cpu(name):
    found = config(f"loss={name}").loss
    assert sharpness_of(found) == (None if name == "vicreg" else 10)
    assert build_loss(found).empty == "zero"


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_has_a_configuration(name):
    assert config(f"data={name}").data.name == name


def test_every_loss_of_the_table_has_a_configuration_and_the_paper_s_sharpness():
    for kind in (Train, Clip):
        for name in STARTS[kind].losses:
            assert configure([f"loss={name}"], kind).loss["name"] == name
    for name, entry in LOSSES.items():
        if entry.paper_sharpness is not None:
            assert sharpness_of(config("scale=paper", f"loss={name}").loss) == entry.paper_sharpness


def test_only_our_own_losses_are_built_from_a_configuration():
    wrong = {"name": "mine", "_target_": "os.system", "command": "true"}
    with pytest.raises(ValueError, match=r"loss=mine: os\.system is not built .* tricouple\.DBOT"):
        build_loss(wrong)
    hidden = {"name": "iot", "_target_": "tricouple.IOT", "epsilon": {"_target_": "os.getpid"}}
    with pytest.raises(ValueError, match="loss=iot: epsilon must be"):
        build_loss(hidden)


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
        (["seed"], "seed: settings are name=value"),
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
