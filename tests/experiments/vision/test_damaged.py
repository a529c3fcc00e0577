"""Whatever is wrong with the files of a run is told in a sentence, never in a traceback."""

import json
import random
from contextlib import suppress

import pytest
import torch

from tricouple_lab import cli
from tricouple_lab.conf.schema import Train
from tricouple_lab.conf.words import ConfigurationError
from tricouple_lab.experiments.encoder import load_encoder
from tricouple_lab.experiments.runs.folder import RunError, RunFolder
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.files import CheckpointError, load_tensors, save_tensors, write_text
from tricouple_lab.options import CommandError
from tricouple_lab.report.command import write_report
from tricouple_lab.report.read import StudyError


@pytest.fixture
def run(tiny, console):
    """A finished run, and how to do it again."""
    config = tiny("training.epochs=1", "evaluation.figures=false")
    return run_once(VISION, config, console).folder, lambda: run_once(VISION, config, console)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut off, overwritten, with values of other types, or something else altogether."""
    kind = rng.randrange(5)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        place = rng.randrange(len(content))
        return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place + 4 :]
    if kind == 2:
        return rng.choice([b"", b"\x00" * 9, b"[]", b"7", b'"x"', b"null", b"[" * 100_000, b"{}"])
    try:
        table = json.loads(content)
    except ValueError:
        return content[::-1]
    node = table
    while isinstance(node, dict) and node:
        key = rng.choice(list(node))
        if not isinstance(node[key], dict) or rng.random() < 0.3:
            node[key] = rng.choice([None, "x", -1, 1e400, [], {}, [[1]], True, {"x": []}])
            break
        node = node[key]
    return json.dumps(table).encode()


@pytest.mark.parametrize("name", ["evaluation.json", "runs.jsonl", "study.json", "config.yaml"])
def test_randomly_damaged_files_are_told_in_a_sentence(run, name, monkeypatch, capsys):
    folder, again = run
    path = folder.path / name
    whole, rng = path.read_bytes(), random.Random(name)
    # Whether it would train or evaluate is not the question, which would take its time.
    monkeypatch.setattr(VISION.__class__, "listing", lambda *_: {})
    monkeypatch.setattr("tricouple_lab.experiments.runs.run.collect_provenance", _enough)
    for _ in range(15):
        path.write_bytes(damaged(whole, rng))
        # Anything else is a traceback, and fails here. A CommandError is of the records.
        with suppress(RunError, CheckpointError, ConfigurationError, CommandError, WorkBegins):
            again()
        with suppress(StudyError):
            write_report(folder.path)
        path.write_bytes(whole)
    assert again().skipped


class WorkBegins(Exception):  # noqa: N818
    """All files were read."""


def _enough():
    raise WorkBegins


def test_a_garbled_metrics_file_stops_nothing_and_settings_are_named(run, capsys):
    folder, again = run
    folder.metrics.write_bytes(b"\x00\xff,\n\n")
    assert again().skipped
    assert write_report(folder.path).is_file()
    folder.config.write_text("seed: [1\n")
    assert cli.main(["evaluate", str(folder.path)]) == 2
    assert f"cannot read {folder.config}" in capsys.readouterr().err


def test_wrong_weights_are_told_in_a_sentence(run, capsys):
    folder, _ = run
    content = load_tensors(folder.encoder)
    wrong = {
        "is damaged, it lacks a row an epoch": {"rows": []},
        "is damaged, it lacks 'int' object": {"rows": [7]},
        "is damaged, it lacks a table of weights": {"weights": [1, 2]},
        "is damaged, it lacks tensors": {"weights": {"a": 1}},
        "do not fit the network of its config": {"weights": {}},
        "do not fit the network": {"weights": {k: torch.zeros(3) for k in content["weights"]}},
        "is of another configuration": {"identity": "other"},
        "unexpected keyword argument 'more'": {"more": 1},
    }
    for complaint, change in wrong.items():
        save_tensors(folder.encoder, content | change)
        with pytest.raises(CheckpointError, match=complaint):
            load_encoder(folder.path)
        assert cli.main(["evaluate", str(folder.path)]) == 2
        assert complaint in capsys.readouterr().err


def test_a_flipped_bit_in_the_weights_is_found(run):
    folder, _ = run
    config, content = folder.read(Train), bytearray(folder.encoder.read_bytes())
    weights = folder.read_trained(config).weights["head.weight"]
    place = bytes(content).index(weights.numpy().tobytes())
    content[place + 2] ^= 1
    folder.encoder.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"encoder\.pt is damaged: .* another checksum"):
        folder.read_trained(config)


def test_a_refused_pickle_is_not_followed_by_advice_to_run_it(tmp_path):
    torch.save({"x": RunFolder(tmp_path)}, tmp_path / "encoder.pt")
    with pytest.raises(CheckpointError) as refused:
        load_tensors(tmp_path / "encoder.pt")
    assert "weights_only" not in str(refused.value)


def test_half_a_character_is_written_as_an_escape(tmp_path):
    write_text(tmp_path / "a.txt", "caf\udce9")
    assert (tmp_path / "a.txt").read_text() == "caf\\udce9"
