"""Files are whole or as before, also on a full disk; checkpoints hold data, not code."""

import errno
import os
import pickle

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


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part(tmp_path):
    path = tmp_path / "last.ckpt"
    write_atomically(path, lambda part: torch.save({"weights": torch.ones(1000)}, part))

    def save(part):
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"last\.ckpt: cannot be written \(No space left.+ MB free\)"):
        write_atomically(path, save)
    assert torch.equal(load_checkpoint(path)["weights"], torch.ones(1000))
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_rename_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "first")

    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match=r"a\.txt: cannot be written \(Permission denied"):
        write_text(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/a\.txt: .*(Not a directory|File exists)"):
        write_text(tmp_path / "file" / "a.txt", "text")


class Payload:
    """A pickle that would run code when it is loaded."""

    def __reduce__(self):
        return (os.system, ("touch ran",))


@pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps(Payload(), protocol=2)])
def test_damaged_and_dangerous_checkpoints_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "last.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"last\.ckpt: cannot be continued, it is damaged"):
        load_checkpoint(path)
    torch.save({"weights": Payload()}, path)
    with pytest.raises(UserError, match="holds more than tensors and plain values"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_truncated_and_missing_checkpoints_are_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    with pytest.raises(UserError, match=r"last\.ckpt: cannot be continued, there is no such file"):
        load_checkpoint(path)
    torch.save({"weights": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(path)
