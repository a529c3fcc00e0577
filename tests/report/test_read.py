"""Study folders are read as they are meant, and refused with the place that is wrong."""

import json
import math

import numpy as np
import pytest

from report import fake
from tricouple_lab.report.read import StudyError, read_study


def write_lines(folder, *lines):
    fake.write_study(folder, [], snapshots=False)
    (folder / "runs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_study_comes_back_as_it_was_written(tmp_path):
    record = fake.run("iot", 6, 1)
    study = read_study(fake.write_study(tmp_path, [record], verdicts={"rich": "many directions"}))
    (run,) = study.runs
    assert (study.kind, study.name) == ("synthetic", "A made-up mixture")
    assert study.verdicts == {"rich": "many directions"}
    assert (run.id, run.part, run.status) == (record["id"], "main", "done")
    assert run.config == record["config"]
    np.testing.assert_array_equal(run.curves["nc1"], record["curves"]["nc1"])
    assert run.final("nc1") == record["curves"]["nc1"][-1]


def test_the_last_line_of_a_run_wins(tmp_path):
    first, other, last = fake.run("iot"), fake.run("byol"), fake.run("iot")
    first["status"], last["seconds"] = "partial", 99.0
    runs = read_study(fake.write_study(tmp_path, [first, other, last])).runs
    assert {run.id: (run.status, run.seconds) for run in runs} == {
        last["id"]: ("done", 99.0),
        other["id"]: ("done", 12.5),
    }


def test_keys_of_the_version_before_are_read(tmp_path):
    records = [fake.run("iot", seed=n) for n in range(4)]
    for record, key in zip(records, ("push_pull", "info_nce", "inva_spread", "byol"), strict=True):
        record["config"]["method"] = key
    runs = read_study(fake.write_study(tmp_path, records)).runs
    found = [run.config["method"] for run in runs]
    assert found == ["pushpull", "infonce", "invaspread", "byol"]


def test_steps_are_those_of_the_record_or_of_its_curves(tmp_path):
    records = [fake.run("iot"), fake.run("byol") | {"steps": 7}]
    runs = read_study(fake.write_study(tmp_path, records)).runs
    assert [run.steps for run in runs] == [200, 7]


def test_a_folder_of_studies_is_a_study_of_their_runs(tmp_path):
    for number, method in enumerate(("iot", "byol")):
        fake.write_study(tmp_path / str(number), [fake.run(method)], snapshots=False)
    assert [run.config["method"] for run in read_study(tmp_path).runs] == ["iot", "byol"]
    fake.write_study(tmp_path / "2", [], kind="clip")
    with pytest.raises(StudyError, match="holds runs of clip and synthetic: report them one by"):
        read_study(tmp_path)


def test_null_becomes_nan(tmp_path):
    record = fake.run("iot")
    record["curves"]["nc1"][-1] = None
    record["spectrum"][0] = None
    (run,) = read_study(fake.write_study(tmp_path, [record])).runs
    assert math.isnan(run.final("nc1"))
    assert math.isnan(run.spectrum[0])
    assert math.isfinite(run.curves["nc1"][0])


def test_a_study_without_runs_is_a_study(tmp_path):
    folder = fake.write_study(tmp_path, [], snapshots=False)
    (folder / "runs.jsonl").unlink()
    assert read_study(folder).runs == ()


def test_snapshots_are_read_on_demand(tmp_path):
    record = fake.run("iot", 5)
    study = read_study(fake.write_study(tmp_path, [record], samples=20))
    snapshot = study.snapshot(study.runs[0])
    assert snapshot.embeddings.shape == (len(fake.STEPS), 20, 16)
    assert snapshot.embeddings.dtype == np.float64
    (tmp_path / "snapshots" / f"{record['id']}.npz").unlink()
    assert study.snapshot(study.runs[0]) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", r"study\.json: not JSON"),
        ("[]", r"study\.json: expected an object, found list"),
        ("{}", r'study\.json: "kind" must be a text, found None'),
        ('{"kind": "synthetic", "config": 3}', r'study\.json: "config" must be an object'),
    ],
)
def test_a_broken_study_json_is_refused(tmp_path, text, complaint):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(StudyError, match=complaint):
        read_study(tmp_path)


GOOD = json.dumps(fake.run("iot"))


def changed(**values):
    return json.dumps(fake.run("byol") | values)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (GOOD[:50], "not JSON"),
        ("7", "expected an object, found int"),
        (changed(id=None), '"id" must be a text'),
        (changed(id="../escape"), "names a file, and '../escape' cannot be one"),
        (changed(status="fine"), "one of done, partial, diverged, found 'fine'"),
        (changed(config=[1]), '"config" must be an object'),
        (changed(curves={"step": [1, 2], "nc1": [1]}), "curve nc1 has 1 values for 2 steps"),
        (changed(curves={"step": ["a"]}), "curve step must be a list of numbers"),
        (changed(spectrum=[[1.0]]), "spectrum must be a list of numbers"),
    ],
)
def test_a_broken_run_is_refused_with_file_and_line(tmp_path, line, complaint):
    folder = write_lines(tmp_path, GOOD, "", line)
    with pytest.raises(StudyError) as refused:
        read_study(folder)
    assert str(refused.value).startswith(f"{folder / 'runs.jsonl'}, line 3: ")
    assert complaint in str(refused.value)


def test_a_snapshot_that_does_not_fit_is_refused(tmp_path):
    record = fake.run("iot")
    study = read_study(fake.write_study(tmp_path, [record]))
    path = tmp_path / "snapshots" / f"{record['id']}.npz"
    np.savez(path, steps=np.arange(3), embeddings=np.zeros((2, 4, 5)), labels=np.zeros(4))
    with pytest.raises(StudyError, match=r"shape \(2, 4, 5\) do not match 3 steps and 4 labels"):
        study.snapshot(study.runs[0])
    path.write_bytes(b"no archive")
    with pytest.raises(StudyError, match="not a snapshot"):
        study.snapshot(study.runs[0])
