"""Files are whole or as before, also on a full disk."""

import errno
import os

import pytest
import torch

from tricouple_lab import files
from tricouple_lab.files import load_checkpoint, write_atomically, write_text
from tricouple_lab.names import UserError


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new folder" / "a.txt"
    write_text(path, "first")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["a.txt"]


def refuse(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("when", ["written", "renamed"])
def test_a_full_disk_leaves_the_last_checkpoint_and_no_part(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    write_atomically(path, lambda part: torch.save({"weights": torch.ones(1000)}, part))

    def save(part):
        part.write_bytes(b"half")
        if when == "written":
            refuse()

    if when == "renamed":
        monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match=r"last\.ckpt: cannot be written \(No space left.+ MB free\)"):
        write_atomically(path, save)
    assert torch.equal(load_checkpoint(path)["weights"], torch.ones(1000))
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match=r"last\.ckpt: cannot be continued, there is no such file"):
        load_checkpoint(tmp_path / "last.ckpt")
