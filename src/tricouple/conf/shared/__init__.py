"""Hydra's groups that every kind of training shares."""
