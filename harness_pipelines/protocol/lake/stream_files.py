"""Files of the stream view as compact sees them, and which neighbours among them are worth a rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.lake.wide import Extents

FILES_MIN = 4  #: a shorter run is left alone
FILES_MAX = 1_000  #: that one move takes: Spark receives each name


class CompactedWrong(HarnessError):
    """The new files do not hold the rows of the files to replace; they are never published."""

    recovery = Recovery.REFRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFile:
    """A data file of the stream view."""

    path: str
    partition: int  #: of a file that mixes several, any of them
    low: int  #: the first offset in it
    high: int  #: one above the last offset in it
    rows: int  #: that are not hidden
    bytes: int
    deletes: str | None = None  #: the delete file that hides rows of it
    extents: Extents | None = None  #: of each of its partitions, where it mixes several

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """Its run of offsets in each partition."""
        if self.extents is None:
            return {self.partition: (self.low, self.high)}
        return {one.partition: (one.low, one.high) for one in self.extents}


def neighbours(ordered: Sequence[StreamFile], is_small: Callable[[StreamFile], bool]) -> Iterator[list[StreamFile]]:
    """The longest runs of small files of *ordered* with no other file between them."""
    for small, run in groupby(ordered, key=is_small):
        if small:
            yield list(run)


def chunks(run: Sequence[StreamFile], budget_bytes: int) -> Iterator[Sequence[StreamFile]]:
    """*run* in parts that one move can take."""
    chunk: list[StreamFile] = []
    size = 0
    for file in run:
        if chunk and (size + file.bytes > budget_bytes or len(chunk) == FILES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.bytes
    yield chunk


def balanced(run: Sequence[StreamFile]) -> Iterator[Sequence[StreamFile]]:
    """The parts of *run* that are long enough and in which no file holds more than half of the bytes."""
    if len(run) < FILES_MIN:
        return
    largest = max(range(len(run)), key=lambda i: run[i].bytes)
    if 2 * run[largest].bytes <= sum(file.bytes for file in run):
        yield run
    else:
        yield from balanced(run[:largest])
        yield from balanced(run[largest + 1 :])
