"""The Hugging Face hub: data sets and weights, asked for only if it answers within seconds."""

import contextlib
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tricouple_lab.names import UserError

PATIENCE = 4.0  # seconds to wait for an answer


@contextlib.contextmanager
def hub() -> Iterator[bool]:
    """Ask whether the hub answers; if it does not, its libraries use what they have on disk.

    Its client retries for minutes without a network. Yields whether the hub answers.
    """
    from huggingface_hub import constants

    answers = _ask(constants.ENDPOINT) if not constants.HF_HUB_OFFLINE else bool
    import datasets  # takes as long as the answer

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    online = answers()
    logging.getLogger("datasets.load").setLevel(logging.ERROR)  # "Using the latest cached version"
    try:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = not online
        yield online
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def load_tables(name: str, place: Path, row: str, looked_for: str, instead: str) -> Any:
    """Return the ``DatasetDict`` of parquet files below a folder, else of the hub.

    ``row`` is ``owner/name`` or ``owner/name:config`` on the hub, empty if it is not there. An
    error names what was ``looked_for`` as well, and what to use ``instead``.
    """
    failures = OSError, ValueError, RuntimeError  # what its libraries raise
    if any(place.rglob("*.parquet")):
        try:
            return _loaded(str(place))
        except failures as error:
            reason = " ".join(str(error).split())[:150]
            raise UserError(f"{place}: datasets cannot read it ({reason}); replace it") from None
    found = f"data={name}: not found as {looked_for} or {place}/*.parquet"
    if row:
        owner, _, config = row.partition(":")
        with hub() as online:
            try:
                return _loaded(owner, config or None)
            except failures as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
                reason = reason if online else "the hub cannot be reached"
                found += f", nor on the hub as {row} ({reason})"
    raise UserError(f"{found}; set TRICOUPLE_DATA to the folder that has it, or use {instead}")


def _loaded(*place: str | None) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(*place)


def _ask(address: str) -> Callable[[], bool]:
    """Ask a server; return a function that waits for the answer, and says whether there is one.

    The resolver of names may take longer than any timeout.
    """
    found: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        with contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(urllib.error.HTTPError):  # an answer as well
                urllib.request.urlopen(request, timeout=PATIENCE).close()
            found.append(True)

    def answers() -> bool:
        thread.join(PATIENCE)
        return bool(found)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return answers
