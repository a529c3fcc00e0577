"""Training methods, and what runs them: batches, checkpoints, curves (Lightning)."""

from tricouple.torchvision_ops import declare_missing

# Lightning imports torchvision through torchmetrics.
declare_missing()
