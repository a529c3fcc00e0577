"""The settings of a loss are read alike in every kind of run."""

from tricouple.experiments.runs.loss_settings import loss_parameters, sharpness_of

__all__ = ["loss_parameters", "sharpness_of"]
