"""Retrieval without hubs: some items are near to all queries, and cosine returns them too often.

python examples/retrieval.py
"""

import torch

import tricouple as tc


def made(n: int = 500, n_bank: int = 2000, dim: int = 32) -> tuple[torch.Tensor, ...]:
    """Past queries (a bank), queries for validation and for the test, and a gallery with hubs."""
    generator = torch.Generator().manual_seed(0)
    own, noise, centre = (
        torch.randn(k, dim, generator=generator) / dim**0.5 for k in (n, n_bank + 2 * n, 1)
    )
    centre = centre / centre.norm()
    gallery = own + (1 + 0.6 * torch.randn(n, 1, generator=generator)) * centre
    items = torch.cat([torch.randint(n, (n_bank,), generator=generator), *[torch.arange(n)] * 2])
    queries = own[items] + 0.8 * noise + centre
    return *queries.split([n_bank, n, n]), gallery


def main() -> dict[str, float]:
    """Recall@1 of three rankings."""
    bank, validation, queries, gallery = made()
    ids = torch.arange(len(gallery))
    c = tc.retrieval.choose_sharpness(validation, gallery, ids, ids, bank)
    unit = [torch.nn.functional.normalize(part) for part in (queries, gallery)]
    scores = {"cosine": unit[0] @ unit[1].T}
    if c is not None:
        scores["bank"] = tc.retrieval.debias(bank, gallery, c)(queries)
        scores["all queries at once"] = tc.retrieval.sinkhorn_scores(queries, gallery, c)
    recall = {name: float((part.argmax(1) == ids).float().mean()) for name, part in scores.items()}
    print(f"sharpness {c}: recall@1", *(f"{name} {value:.3f}" for name, value in recall.items()))
    return recall


if __name__ == "__main__":
    main()
