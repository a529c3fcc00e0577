"""The measurement of what augmentation costs runs, and writes what it found."""

import json

from tricouple.experiments.bench import augmentation


def test_every_way_is_measured(tmp_path, monkeypatch):
    out = tmp_path / "cost.json"
    options = ["--steps", "2", "--batch-size", "4", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["augmentation", *options])
    augmentation.main()
    content = json.loads(out.read_text())
    assert [cost["way"] for cost in content["costs"]] == ["fixed", "batched", "workers"]
    assert "two views of 4 images" in content["step"]
    for cost in content["costs"]:
        assert 0 <= cost["view_seconds"] <= cost["step_seconds"]
        assert cost["cpu_seconds"] > 0
        assert cost["share"] == cost["view_seconds"] / cost["step_seconds"]
