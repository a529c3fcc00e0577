"""Kernels for CUDA without CUDA: numbers from Triton's interpreter, code from its compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tricouple.memory import IN_MATRICES, Storage
from tricouple.ot.sweeps import linear_logs, triton_sums
from tricouple.ot.sweeps.kernels import Matrix, Products
from tricouple.ot.sweeps.log_tiles import LogTiles

BLOCKS = {"WITHIN": True, "ROWS": 32, "COLUMNS": 64, "DEPTH": 32}
SIZES = {"n": "i32", "m": "i32", "d": "i32"}
# What the pointers of each kernel point to, and its own settings.
KERNELS = {
    "row_kernel": ("x y:fp32 v:fp64 index:i64 tops rests:fp64", {"BOTH": True}),
    "column_kernel": (
        "x y:fp32 weight apart:fp64 at:i64 v totals out:fp64",
        {"TRIPLETS": True},
    ),
    "mean_kernel": ("x y:fp32 v:fp64 at:i64 rests weights out:fp64", {}),
    "plan_kernel": (
        "x y:fp32 of_rows of_columns:fp64 at:i64 out:fp64",
        {"BOTH": True, "TRIPLETS": True, "BY_ROW": False},
    ),
    "pull_kernel": (
        "x y:fp32 of_rows of_columns:fp64 at away:i64 out:fp32",
        {"TRIPLETS": True, "BY_ROW": False},
    ),
}


def test_sums_in_the_interpreter_are_those_of_pytorch():
    """Pairs and triplets, ragged sizes, the diagonal excluded, a sample without mass, c to 1000."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_check.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRICOUPLE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 2e-6


def pointers(text):
    """``x y:fp32`` are two pointers to float32."""
    found, waiting = {}, []
    for word in text.split():
        name, _, kind = word.partition(":")
        waiting.append(name)
        if kind:
            found |= dict.fromkeys(waiting, f"*{kind}")
            waiting = []
    return found


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("generation", [80, 90])
def test_kernels_compile_to_machine_code(name, generation, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    arguments, settings = KERNELS[name]
    pulls = name == "pull_kernel"
    constants = settings | BLOCKS | ({"WIDTH": 128} if pulls else {})
    number = {"count": "i32"} if pulls else {"sign": "fp32"}
    signature = pointers(arguments) | SIZES | number | dict.fromkeys(constants, "constexpr")
    kernel = getattr(triton_sums, name)
    assert list(signature) == kernel.arg_names
    source = ASTSource(kernel, signature, constants)
    options = {"enable_fp_fusion": True}
    code = triton.compile(source, target=GPUTarget("cuda", generation, 32), options=options)
    assert len(code.asm["cubin"]) > 1000
    assert f".target sm_{generation}" in code.asm["ptx"]
    assert "tf32" not in code.asm["ptx"]


def test_triton_is_chosen_for_streamed_float32_on_cuda_alone(monkeypatch):
    chosen = []
    monkeypatch.setattr(triton_sums, "TritonTiles", lambda *args, **options: chosen.append(args))
    streamed = Storage(streamed=True, tile_entries=1 << 16, budget=1.0)
    with torch.device("meta"):
        single, double = Products(torch.randn(9, 4), torch.randn(9, 4)), Matrix(torch.randn(9, 9))
    monkeypatch.setattr(linear_logs, "_on_cuda", lambda like: True)

    def tiles(source=single, dtype=torch.float32, storage=streamed):
        return linear_logs.tiles_of(source, dtype, within=False, storage=storage, shard=None)

    tiles()
    assert len(chosen) == 1
    others = [tiles(dtype=torch.float64), tiles(storage=IN_MATRICES), tiles(double)]
    with monkeypatch.context() as older:
        older.setattr(triton, "__version__", "3.1.0")
        others.append(tiles())
    monkeypatch.setenv("TRICOUPLE_TRITON", "0")
    others.append(tiles())
    assert [type(other) for other in others] == [LogTiles] * 5
    assert len(chosen) == 1
