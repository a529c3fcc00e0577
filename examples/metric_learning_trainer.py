"""pytorch-metric-learning's trainer and tester on handwritten digits, with Neg-MMIOT.

    python examples/metric_learning_trainer.py

Lines that differ from that library's own example are marked.
"""

import tricouple as tc  # tricouple
from tricouple.adapters.pytorch_metric_learning import MetricLoss  # tricouple

import torch
from pytorch_metric_learning import distances, samplers, testers, trainers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def main(epochs: int = 5) -> list[float]:
    """Train; the loss of each step."""
    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    pixels, classes = torch.tensor(pixels).float() / 16, torch.tensor(classes)
    train_set = TensorDataset(pixels[:1200], classes[:1200])
    test_set = TensorDataset(pixels[1200:], classes[1200:])
    trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
    embedder = nn.Linear(128, 32)
    loss = MetricLoss(tc.NegMMIOT(sharpness=10))  # tricouple, for TripletMarginLoss()
    history: list[float] = []
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk, "embedder": embedder},
        optimizers={
            "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=1e-3),
            "embedder_optimizer": torch.optim.Adam(embedder.parameters(), lr=1e-3),
        },
        batch_size=100,
        loss_funcs={"metric_loss": loss},
        mining_funcs={},
        dataset=train_set,
        sampler=samplers.MPerClassSampler(classes[:1200], m=10, length_before_new_iter=1200),
        dataloader_num_workers=0,
        end_of_iteration_hook=lambda own: history.append(own.losses["metric_loss"].item()),
    )
    nearest = CustomKNN(distances.CosineSimilarity())
    tester = testers.GlobalEmbeddingSpaceTester(
        dataloader_num_workers=0,
        accuracy_calculator=AccuracyCalculator(include=("precision_at_1",), k=1, knn_func=nearest),
    )
    trainer.train(num_epochs=epochs)
    accuracies = tester.test({"test": test_set}, epochs, trunk, embedder)
    print(f"precision at 1: {accuracies['test']['precision_at_1_level0']:.3f}")
    return history


if __name__ == "__main__":
    main()
