"""Files are whole or as before, also on a full disk; checkpoints hold data, not code."""

import errno
import os
import pickle

import pytest
import torch

from tricouple_lab import files
from tricouple_lab.files import CheckpointError, WriteError, load_tensors, save_tensors, write_text
from tricouple_lab.training.trainer import AtomicCheckpointIO


class FullDisk:
    """A file that takes some bytes and then has no space left."""

    def __init__(self, file, capacity):
        self.file = file
        self.left = capacity

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new folder" / "a.txt"
    write_text(path, "first")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["a.txt"]


def test_full_disk_leaves_the_last_checkpoint_and_no_debris(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    save_tensors(path, {"weights": torch.ones(1000)})
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda what, file: save(what, FullDisk(file, 100)))
    message = r"last\.ckpt: No space left on device; the file from before is unharmed"
    with pytest.raises(WriteError, match=message):
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(1000)}, path)
    assert torch.equal(load_tensors(path)["weights"], torch.ones(1000))
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_rename_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "first")

    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(WriteError, match="Permission denied; the file from before is unharmed"):
        write_text(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"file/a\.txt: (Not a directory|File exists)"):
        write_text(tmp_path / "file" / "a.txt", "text")


class Payload:
    """A pickle that would run code when it is loaded."""

    def __reduce__(self):
        return (os.system, ("true",))


@pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps(Payload(), protocol=2)])
def test_damaged_and_dangerous_checkpoints_are_refused(tmp_path, content):
    path = tmp_path / "last.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.ckpt is not a checkpoint, or damaged"):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)


def test_truncated_missing_and_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    with pytest.raises(CheckpointError, match=r"last\.ckpt: there is no such file"):
        load_tensors(path)
    save_tensors(path, {"weights": torch.ones(1000)})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="damaged"):
        load_tensors(path)
    torch.save(torch.ones(3), path)
    with pytest.raises(CheckpointError, match="holds a Tensor"):
        load_tensors(path)
