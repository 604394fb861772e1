"""What flows and the lake say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The files of one attempt, checked against its move."""

    files: tuple[DataFile, ...]
    rows: int
    bytes: int


NOTHING_STAGED = Staged(files=(), rows=0, bytes=0)
