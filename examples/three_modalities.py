"""Train three encoders with one plan; find the image of an audio sample, with texts as a bridge."""

import torch
from torch import Tensor, nn

import tricouple as tc

number = torch.arange(64)
ids = {"image": number, "text": number, "audio": number[number % 4 > 0]}  # every fourth is missing


def triples(views: Tensor) -> dict[str, Tensor]:
    """Noisy views of hidden vectors, in place of a data set."""
    rows = torch.randn(64, 8) @ views + 0.8 * torch.randn(3, 64, 32)
    return {name: part[ids[name]] for name, part in zip(ids, rows, strict=True)}


def main(steps: int = 150) -> dict[str, float]:
    """Train; recall@1 of new triples before and after, by cosine and by the plan."""
    torch.manual_seed(0)
    views, found = torch.randn(3, 8, 32), {}
    encoders = nn.ModuleDict({name: nn.Linear(32, 8) for name in ids})
    criterion = tc.MultiModalIOT(sharpness=7)
    optimizer = torch.optim.Adam(encoders.parameters(), lr=1e-2)
    for step in range(steps + 1):
        z = {name: encoders[name](rows) for name, rows in triples(views).items()}
        if step in (0, steps):
            pairs = tc.ot.multimodal_sinkhorn(z, sharpness=10).pair_marginal("audio", "image")
            cosine = torch.cosine_similarity(z["audio"][:, None], z["image"], dim=2)
            for way, scores in {"cosine": cosine, "plan": pairs}.items():
                right = (scores.argmax(1) == ids["audio"]).double()
                found[f"{way} after {step} steps"] = float(right.mean())
        optimizer.zero_grad()
        criterion(z, ids).backward()
        optimizer.step()
    return found


if __name__ == "__main__":
    print(*(f"{way}: {recall:.0%}" for way, recall in main().items()), sep="\n")
