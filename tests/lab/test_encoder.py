"""A trained encoder is loaded, embeds and is shared, without its data."""

import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tricouple
from tiny_task import CLASSES, Evil, Tiny, trained
from tricouple_lab.names import UserError
from tricouple_lab.runs import encoder as module
from tricouple_lab.runs.encoder import load_encoder
from tricouple_lab.runs.folder import load_weights, read_header


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of a finished run, whose task has no data."""

    class NoData(Tiny):
        def load(self, config):
            raise AssertionError("data are not needed")

    monkeypatch.setattr(module, "task_of", lambda name: NoData())
    for file in finished.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_an_encoder_unpacks_and_embeds_as_after_training(run):
    encoder = tricouple.load_encoder(run)
    model, transform, classes = encoder
    assert classes == CLASSES
    assert not model.training
    items = [[1.0, 0, 0, 0, 0, 0], [0, 0, 1.0, 0, 0, 0]]
    found = encoder.embed(items)
    assert (found.shape, found.dtype) == ((2, 4), np.float32)
    with torch.no_grad():
        assert np.array_equal(model(torch.stack([transform(item) for item in items])), found)
    weights = load_file(run / "encoder.safetensors")
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())


def test_the_best_weights_are_those_of_the_best_epoch_or_the_last_without_validation(run):
    best = load_file(run / "best.safetensors")
    model = load_encoder(run, "best").model
    assert all(torch.equal(model.state_dict()[key], value) for key, value in best.items())
    (run / "best.safetensors").unlink()
    assert load_encoder(run, "best").classes == CLASSES
    with pytest.raises(UserError, match="choices are last, best"):
        load_encoder(run, "first")


def test_the_header_has_classes_and_what_the_task_adds(run):
    assert read_header(run / "encoder.safetensors") == (CLASSES, {"width": 16})


def test_damaged_or_hostile_weights_are_one_sentence(run, monkeypatch):
    monkeypatch.chdir(run)
    file = run / "encoder.safetensors"
    whole = file.read_bytes()
    other = {"0.weight": torch.zeros(2, 2)}
    for content in (whole[:100], whole[:-9], b"", pickle.dumps(Evil())):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"encoder\.safetensors: damaged") as error:
            load_encoder(run)
        assert "\n" not in str(error.value)
    save_file(other, file)
    with pytest.raises(UserError, match="not of a run"):
        load_encoder(run)
    header = {"tricouple": '{"classes": [], "about": {"width": 16}}'}
    save_file(other, file, header)
    with pytest.raises(UserError, match=r"this configuration \(size mismatch for 0\.weight"):
        load_encoder(run)
    save_file({"0.weight": torch.zeros(16, 6)}, file, header)
    with pytest.raises(UserError, match=r"not the weights of this configuration \(0\.bias\)"):
        load_encoder(run)
    save_file(other, file, {"tricouple": '{"classes": [], "about": {}}'})
    with pytest.raises(UserError, match=r"do not fit \('width'\)"):
        load_encoder(run)
    assert not (run / "evil").exists()


def test_a_folder_without_a_finished_run_says_what_to_do(run, tmp_path):
    with pytest.raises(UserError, match="not the folder of a run"):
        load_encoder(tmp_path / "nothing")
    (run / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="has not finished; tricouple train --resume"):
        load_encoder(run)
    assert isinstance(UserError(""), ValueError)


def test_a_part_that_was_not_saved_keeps_its_own_weights(tmp_path):
    both = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    own = both[0].weight.clone()
    head = {f"1.{key}": value + 1 for key, value in both[1].state_dict().items()}
    save_file(head, tmp_path / "encoder.safetensors", {"tricouple": "{}"})
    load_weights(tmp_path, both)
    assert torch.equal(both[0].weight, own)
    assert torch.equal(both[1].weight, head["1.weight"])


def test_a_missing_package_is_named_with_its_extra(run, monkeypatch):
    def restore(*_):
        raise ModuleNotFoundError("No module named 'timm'", name="timm")

    monkeypatch.setattr(Tiny, "restore", restore)
    with pytest.raises(ImportError, match=r"needs timm: pip install 'tricouple\[train\]'"):
        load_encoder(run)


def test_a_card_has_chance_before_and_after(run):
    text = load_encoder(run).save_card(run, "me/points").read_text()
    row = next(line for line in text.splitlines() if "embedding/nearest_mean" in line)
    assert [cell.strip() for cell in row.split("|")][2] == "25.0"
    assert len(row.split("|")) == 6
    for part in ("library_name: tricouple", 'snapshot_download("me/points")', "12 steps, seed 0"):
        assert part in text


class Hub:
    """Keeps what would be uploaded."""

    uploaded: frozenset[str] = frozenset()

    def create_repo(self, repo, **options):
        if repo == "me/closed":
            raise ConnectionError("offline\nsecond line")
        return f"https://huggingface.co/{repo}"

    def upload_folder(self, repo_id, folder_path):
        Hub.uploaded = frozenset(os.listdir(folder_path))


def test_a_run_is_shared_without_checkpoints_and_with_a_card(run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    (run / "last.ckpt").write_text("")
    encoder = load_encoder(run)
    assert encoder.push_to_hub("me/points") == "https://huggingface.co/me/points"
    assert {"README.md", "config.yaml", "encoder.safetensors", "metrics.json"} <= Hub.uploaded
    assert "last.ckpt" not in Hub.uploaded
    with pytest.raises(UserError, match=r"push_to_hub\('me/closed'\): offline$"):
        encoder.push_to_hub("me/closed")
