"""What a loss allocates is where its tensors are, whatever the default device."""

import subprocess
import sys

SCRIPT = """
import torch
import tricouple as tc

for n in (40, 1100):
    generator = torch.Generator().manual_seed(0)
    z, t = (torch.randn(n, 8, generator=generator) for _ in range(2))
    y = torch.arange(n) // 2
    even = torch.arange(n // 2) * 2
    triplets = even, even + 1, (even + 3) % n
    calls = {}
    for memory in ("auto", "streamed"):
        for name, c in {
            "NegMMIOT": tc.NegMMIOT(1.0, 0.1, memory=memory, n_iters=3),
            "PushPull": tc.PushPull(1.0, 0.1, memory=memory, n_iters=3),
            "IOT": tc.IOT(0.1, memory=memory, n_iters=3),
            "InfoNCE": tc.InfoNCE(0.1, memory=memory),
        }.items():
            calls[name, memory, "within"] = lambda z, c=c: c(z, y)
            calls[name, memory, "across"] = lambda z, c=c: c(z, y, ref_emb=t, ref_labels=y)
            calls[name, memory, "listed"] = lambda z, c=c: c(z, indices_tuple=triplets)
    if n < 100:
        for name, c in {
            "implicit": tc.NegMMIOT(1.0, 0.5, gradient="implicit", n_iters=300),
            "log_sigmoid": tc.NegMMIOT(1.0, 0.1, shaping="log_sigmoid"),
            "hinge": tc.NegMMIOT(1.0, 0.1, shaping="hinge"),
            "uniformity": tc.IOT(0.1, uniformity=0.2),
            "InvaSpread": tc.InvaSpread(),
            "SigLIP": tc.SigLIP(),
            "DBOT": tc.DBOT(),
            "VICReg": tc.VICReg(),
        }.items():
            calls[name, "within"] = lambda z, c=c: c(z, y)
        calls["FusedGromov"] = lambda z: tc.FusedGromov()(z, y, ref_emb=t, ref_labels=y)

    def all_gradients():
        leaf = z.clone().requires_grad_()
        return {name: torch.autograd.grad(call(leaf), leaf)[0] for name, call in calls.items()}

    wanted = all_gradients()
    torch.set_default_device("meta")
    found = all_gradients()
    torch.set_default_device("cpu")
    for name in calls:
        assert torch.allclose(found[name], wanted[name], rtol=1e-5, atol=1e-9), name
    print("equal", len(calls))
"""


def test_another_default_device_changes_nothing():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.count("equal") == 2
