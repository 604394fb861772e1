"""The position of a stream's reader: the vector that it returns after each batch and resumes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.bounds import Bounds, Vector, vector_from_json, vector_to_json


class TokenUnfit(UsageError):
    """The text is not a token of a stream, or belongs to another topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamToken:
    """The reader has all records of the stream below *offsets*. As text it is one line of JSON."""

    topic_id: str  #: offsets of a topic that was created again are other records
    offsets: Vector  #: the next offset per partition
    in_state: bool = False  #: the state, with which the stream begins, is not out whole: it comes again
    version: int | None = None  #: the corrections up to it are out; None: the reader does not follow them

    def text(self) -> str:
        fields: dict[str, Any] = {
            "topic_id": self.topic_id,
            "offsets": vector_to_json(self.offsets),
            "in_state": self.in_state,
        }
        if self.version is not None:
            fields["version"] = self.version
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> StreamToken:
        """Raises: TokenUnfit."""
        try:
            fields = json.loads(text)
            return cls(
                topic_id=str(fields["topic_id"]),
                offsets=vector_from_json(fields["offsets"]),
                in_state=bool(fields["in_state"]),
                version=None if fields.get("version") is None else int(fields["version"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenUnfit(f"{text[:200]!r} is not a token of a stream; each batch of a stream has one") from error


def check_offsets(table: str, offsets: Vector, bounds: Mapping[int, Bounds]) -> None:
    """A stream can begin at *offsets* of the table's partitions. Raises: UsageError."""
    for partition, offset in sorted(offsets.items()):
        if partition not in bounds:
            raise no_partition(table, partition, bounds)
        if offset < bounds[partition].start:
            raise UsageError(
                f"{table}: partition {partition} begins at offset {bounds[partition].start}, so its stream cannot "
                f"begin at {offset}; begin at `earliest`"
            )


def no_partition(table: str, partition: int, bounds: Mapping[int, Bounds]) -> UsageError:
    known = ", ".join(map(str, sorted(bounds)))
    return UsageError(f"{table} has no partition {partition}; its partitions: {known}")
