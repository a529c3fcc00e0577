"""The weights of a run, from a finished one or from where another stands."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tricouple.experiments.runs.run_folder import RunFolder
from tricouple.files import save_tensors
from tricouple.training.checkpoint import CheckpointError, load_tensors
from tricouple.training.history import History, Row

_PREFIX = "encoder."  # of the encoder's weights in a checkpoint of the whole training


@dataclass(frozen=True)
class Trained:
    """How far a run has come.

    Attributes:
        identity: Digest of the configuration.
        weights: Of the encoder.
        rows: Of its curves, one an epoch and one before the first.
    """

    identity: str
    weights: dict[str, object]
    rows: list[Row]

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return int(self.rows[-1]["epoch"])

    def restore(self, encoder: nn.Module, identity: str, folder: RunFolder) -> None:
        """Load the weights into an encoder of the same configuration."""
        if self.identity != identity:
            raise CheckpointError(f"the weights in {folder.path} are of another configuration")
        encoder.load_state_dict(self.weights)


def save_trained(folder: RunFolder, trained: Trained) -> None:
    """Keep the result of a training, without what only its continuation would need."""
    content = {
        "identity": trained.identity,
        "weights": trained.weights,
        "rows": trained.rows,
    }
    save_tensors(folder.encoder, content)


def load_trained(folder: RunFolder) -> Trained:
    """The weights of a run: the final ones, or those of the last finished epoch.

    Raises:
        CheckpointError: If there are none, or the file is damaged.
    """
    try:
        if folder.encoder.exists():
            content = load_tensors(folder.encoder)
            return Trained(content["identity"], content["weights"], content["rows"])
        if folder.checkpoint.exists():
            content = load_tensors(folder.checkpoint)
            weights = {
                name.removeprefix(_PREFIX): value
                for name, value in content["state_dict"].items()
                if name.startswith(_PREFIX)
            }
            rows = content["callbacks"][History.__qualname__]["rows"]
            return Trained(content["identity"], weights, rows)
    except KeyError as error:
        raise CheckpointError(f"the weights in {folder.path} lack {error}: delete them") from error
    raise CheckpointError(f"{folder.path} has no weights yet: no epoch is finished")
