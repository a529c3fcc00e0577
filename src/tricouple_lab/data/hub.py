"""The Hugging Face hub: data sets and weights, asked for only if it answers within seconds."""

from __future__ import annotations

import contextlib
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

PATIENCE = 5.0  # seconds to wait for an answer


@contextlib.contextmanager
def hub() -> Iterator[bool]:
    """Ask whether the hub answers; if it does not, its libraries use what they have on disk.

    Its client retries for minutes without a network. Yields whether the hub answers.
    """
    import datasets
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    online = not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)
    logger = logging.getLogger("datasets.load")  # "Using the latest cached version …"
    level = logger.level
    try:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = not online
        logger.setLevel(logging.ERROR)
        yield online
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
        logger.setLevel(level)


def load_hub(row: str) -> Any:
    """Return the ``DatasetDict`` of ``owner/name`` or ``owner/name:config``.

    Raises:
        ConnectionError: If it is neither on disk nor to be had; the message is a reason.
    """
    import datasets

    name, _, config = row.partition(":")
    with hub() as online:
        try:
            return datasets.load_dataset(name, config or None)
        except (OSError, ValueError, RuntimeError) as error:  # what its libraries raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
            raise ConnectionError(reason if online else "the hub cannot be reached") from error


def _answers(address: str) -> bool:
    """Whether a server answers at all; a resolver may wait for longer than any timeout."""
    found: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
            found.append(True)
        except urllib.error.HTTPError:
            found.append(True)
        except (OSError, ValueError):
            found.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    return bool(found and found[0])
