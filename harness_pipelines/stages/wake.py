"""Which stages of a table could do something now, worked out from the ledger and the log alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages import compact, otree, tier
from harness_pipelines.stores.ports import TableRow

if TYPE_CHECKING:
    from harness_pipelines.stores.open import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Why a stage is due, and what tells this occasion from another one."""

    why: str
    attempt: int  #: of the open move, 0 if there is none
    position: int  #: sum of the bounds that the stage would move, or the version that it would write anew


def due_stages(stores: Stores, table: TableRow) -> dict[Stage, Due]:
    """Stages of *table* that have work and that nobody holds a live claim on.

    Raises: what the log and the ledger raise (`TopicMissing`, `KafkaUnreachable`, ...).
    """
    busy = {row["stage"] for row in stores.readers.rows("checks/busy", {"table_id": table.table_id})}
    positions = {p.partition: p.bounds for p in stores.tables.positions(table)}
    due: dict[Stage, Due] = {}
    if Stage.INGEST not in busy and table.spec.buffer != "none":
        marks = stores.log.watermarks(table.spec.topic, positions)
        if behind := sum(max(marks[p].end - b.buffer_hi, 0) for p, b in positions.items()):
            position = sum(b.buffer_hi for b in positions.values())
            due[Stage.INGEST] = Due(why=f"{behind} offsets behind the log", attempt=0, position=position)
    if Stage.TIER not in busy:
        found = tier.trigger(stores, table)
        if found is not None:
            move = stores.tables.open_move(table, Stage.TIER, shard=0)
            position = sum(b.stream_hi for b in positions.values())
            due[Stage.TIER] = Due(why=found, attempt=move.attempt if move else 0, position=position)
    for stage, found in _rewrites(stores, table, busy):
        move = stores.tables.open_move(table, stage, shard=0)
        version = stores.tables.head(table).version
        due[stage] = Due(why=found, attempt=move.attempt if move else 0, position=version)
    return due


def _rewrites(stores: Stores, table: TableRow, busy: Collection[str]) -> Iterator[tuple[Stage, str]]:
    """The stages that write the lake's rows anew, as far as they are due, and why."""
    for stage, trigger in {Stage.COMPACT: compact.trigger, Stage.OTREE: otree.trigger}.items():
        if stage in table.effects and stage not in busy and (why := trigger(stores, table)):
            yield stage, why
