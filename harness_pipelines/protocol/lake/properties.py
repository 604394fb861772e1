"""What the harness writes into the properties of views and the summaries of snapshots."""

from __future__ import annotations

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.moves import Move
from harness_pipelines.spec.table import TableSpec

TABLE = "harness.table"  #: property of a view: the table that it is of
COMMENT = "comment"  #: property of a view: the table's description, where Spark, Trino and Flink look for one
OWNERS, TAGS = "harness.owners", "harness.tags"  #: properties of a view: ``a@b.de, team:c`` and ``k=v, l=w``
NONCE = "harness.nonce"
EVOLVED = "harness.evolved-by"  #: property of a view: the move that changed its columns last, as "number/nonce"


CORRECTIONS = "harness.corrections"  #: of a replay: how many rows it put back
MOVE, ATTEMPT, SCHEMA_VERSION, RANGES = (
    "harness.move",
    "harness.attempt",
    "harness.schema-version",
    "harness.ranges",
)


TOPIC, STARTS = "harness.topic", "harness.starts"  #: properties of a view: what a rebuild of a lost ledger asks for
BATCH_HI = "harness.batch-hi"  #: of a batch view's snapshot: it has the rows of the stream view below
RECALLED = "harness.recalled"  #: of a batch view's snapshot: the tables in Postgres that have rows of it, and how many


def told_of(move: Move) -> dict[str, str]:
    """For the summary of a snapshot of *move*."""
    return {NONCE: move.nonce} if move.nonce else {}


def summary_of(move: Move) -> dict[str, str]:
    """What each snapshot of *move* says of it."""
    return {
        MOVE: str(move.move_id),
        ATTEMPT: str(move.attempt),
        **told_of(move),
        SCHEMA_VERSION: str(move.schema_version),
        RANGES: ",".join(f"{r.partition}:{r.low}-{r.high}" for r in move.ranges),
    }


def properties_of(spec: TableSpec) -> dict[str, str]:
    """What each view of a table says of it."""
    told = {
        COMMENT: spec.description or "",
        OWNERS: ", ".join(spec.owners),
        TAGS: ", ".join(f"{name}={value}" for name, value in spec.tags),
    }
    return {TABLE: spec.table} | {name: text for name, text in told.items() if text}


def vector_text(vector: Vector) -> str:
    """A vector as properties and summaries hold it: ``0:17,1:4``."""
    return ",".join(f"{p}:{o}" for p, o in sorted(vector.items()))


def vector_of(text: str | None) -> dict[int, int]:
    """What `vector_text` wrote; nothing of nothing."""
    return {int(p): int(o) for p, _, o in (part.partition(":") for part in (text or "").split(",") if part)}
