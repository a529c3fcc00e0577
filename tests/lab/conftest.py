"""What every test of tricouple_lab needs before Lightning or timm is imported."""

import os

import pytest

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_CACHE", str(tmp_path / "cache"))
