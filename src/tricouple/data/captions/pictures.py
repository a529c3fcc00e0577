"""Pictures that are decoded when they are indexed: files, or members of tar archives."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tricouple.data.images.files import decode

CHANNELS = 3


@dataclass(frozen=True)
class Picture:
    """Where the bytes of an image are.

    Attributes:
        path: The file, or the archive that has it inside.
        name: Inside the archive; empty for a file.
        offset: First byte inside the archive.
        size: Number of bytes; 0 for a whole file.
    """

    path: Path
    name: str = ""
    offset: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.path}/{self.name}" if self.name else str(self.path)

    def fingerprint(self) -> tuple[str, int, int, int]:
        """Something that changes when the picture does, without reading it."""
        about = self.path.stat()
        return str(self), self.offset, about.st_size, about.st_mtime_ns

    def decode(self, side: int) -> Tensor:
        """The picture as a colour square, uint8 of shape (3, side, side)."""
        if not self.size:
            return decode(self.path, CHANNELS, side)
        return decode(Path(str(self)), CHANNELS, side, self._content)

    def _content(self) -> io.BytesIO:
        with self.path.open("rb") as archive:
            archive.seek(self.offset)
            return io.BytesIO(archive.read(self.size))


@dataclass(frozen=True)
class Pictures:
    """Pictures that answer ``pictures[indices]`` like a tensor of shape (n, 3, side, side)."""

    items: tuple[Picture, ...]
    side: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor that these pictures amount to."""
        return len(self.items), CHANNELS, self.side, self.side

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, indices: Tensor) -> Tensor:
        return torch.stack([self.items[index].decode(self.side) for index in indices.tolist()])
