"""Train three encoders with one plan; find the audio of an image, with texts as a bridge."""

import torch
from torch import Tensor, nn

import tricouple as tc

NAMES = ("image", "text", "audio")
number = torch.arange(64)
ids = {"image": number, "text": number, "audio": number[number % 4 > 0]}  # every fourth is missing


def triples(views: Tensor) -> dict[str, Tensor]:
    """Noisy views of hidden vectors, in place of a data set."""
    hidden = torch.randn(64, 8)
    rows = [hidden @ view + torch.randn(64, 32) for view in views]
    return {name: rows[n][ids[name]] for n, name in enumerate(NAMES)}


def main(steps: int = 200) -> tuple[list[float], float]:
    """Train; returns the losses, and recall@1 of new triples."""
    torch.manual_seed(0)
    views, losses = torch.randn(3, 8, 32), []
    encoders = nn.ModuleDict({name: nn.Linear(32, 8) for name in NAMES})
    criterion = tc.MultiModalIOT(sharpness=7)
    optimiser = torch.optim.Adam(encoders.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = criterion({name: encoders[name](rows) for name, rows in triples(views).items()}, ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    new = {name: encoders[name](rows) for name, rows in triples(views).items()}
    plan = tc.ot.multimodal_sinkhorn(new, sharpness=10)
    found = plan.pair_marginal("audio", "image").argmax(1)
    return losses, float((found == ids["audio"]).double().mean())


if __name__ == "__main__":
    print("recall@1 {1:.2f}, loss {0[0]:.2f} → {0[199]:.2f}".format(*main()))
