"""Time and memory of the losses: ``tricouple bench`` or ``python -m benchmarks``."""
