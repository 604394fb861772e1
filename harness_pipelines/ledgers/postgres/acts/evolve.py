"""The boundary commit of a schema change: one transaction changes the schema of all tiers.

It locks in the order of the design: the table, the catalog rows (batch before stream), then what ingest commits take. A
commit ends by taking a shared lock and comparing the schema that it was decoded with; the change takes that lock alone
and sets the next schema. So it waits for the commits that are about to end and for no other: one that comes later finds
the schema changed and is rolled back, whatever it has written to a segment that is closed by then. It is asked for by a
person and has no claim: of two at once the second finds another schema than it was planned on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres import specs
from harness_pipelines.ledgers.postgres.boundary import (
    BoundaryCommit,
    BoundaryFrame,
    Commit,
    SharedCatalog,
    check_pointer,
)
from harness_pipelines.ports import rows
from harness_pipelines.ports.corrections import BuildSchema
from harness_pipelines.ports.ledger import Segment, Swap, TableRow
from harness_pipelines.protocol.bounds import vector_to_json
from harness_pipelines.protocol.changes.corrections import corrected
from harness_pipelines.protocol.schema.evolution import EvolutionRefused, Evolved, check_none_recalled
from harness_pipelines.protocol.schema.schemas import SchemaMoved, check_schema
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.protocol.versions import Version, ViewName, check_base
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec


class MakeSegment(Protocol):
    """Makes the next segment of a table, open, for rows of one schema; *known* are all, under their lock."""

    def __call__(
        self,
        connection: Connection,
        table_id: int,
        known: Sequence[Segment],
        /,
        *,
        spec: TableSpec,
        schema_version: int,
    ) -> Segment: ...


class Evolutions:
    """Schema changes of one table of one database."""

    def __init__(self, database: Database, table: TableRow, *, catalog: str, make_segment: MakeSegment) -> None:
        self._database, self._table = database, table
        self._key = {"table_id": table.table_id}
        self._catalog = SharedCatalog(catalog, database)
        self._make_segment = make_segment

    def publish(self, evolved: Evolved, build: BuildSchema, *, by: str) -> Version:
        """Publish the version from which on the table has the schema of *evolved*.

        Raises: SchemaMoved, SpecMoved (settings were changed: plan it again from those of now), ForeignCommit,
        CommitLost; OutcomeUnknown only when Postgres stays away.
        """
        move = {
            "stage": "evolve",
            "base_version": None,
            "schema_version": self._table.schema_version,
            "trigger": by,
            "error": "the change did not take effect",
        }
        commit = BoundaryCommit.reserved(self._database, self._table, self._catalog, act="evolve", move=move)
        move_id = commit.move_id

        def prepare() -> Commit:
            pointers = {view: self._catalog.current(self._table, view) for view in sorted(self._table.views)}
            swaps = build(pointers, move_id)
            return lambda frame: self._commit(frame, evolved, move_id, lambda locked, _: _prepared(swaps, locked))

        return commit.publish(prepare, lambda frame: self._commit(frame, evolved, move_id, build))

    # -- in the transaction ---------------------------------------------------------------------------------

    def _commit(self, frame: BoundaryFrame, evolved: Evolved, move_id: int, build: BuildSchema) -> Version:
        connection = frame.connection
        frame.lock_table()
        pointers, (head, now) = frame.lock_views(), frame.head()
        check_schema(
            self._table.name, planned=self._table.schema_version, found=head.schema_version, what="a change was planned"
        )
        if evolved.narrows:
            check_none_recalled(self._table.name, head.overlays)
            self._check_none_corrected(connection)
        swaps = build(pointers, move_id)
        for name, swap in swaps.items():
            check_base(head, swap.base_snapshot, table=self._table.name, view=name)
        frame.share_trim()
        frame.check_kept(swaps.values())
        schema_version = head.schema_version + 1
        connection.execute(sql("evolve/hold_ingest"), self._key)
        taken = connection.execute(sql("evolve/set_schema"), {**self._key, "schema_version": schema_version}).fetchall()
        buffer_hi = {row["partition"]: row["buffer_hi"] for row in taken}
        starts = buffer_hi
        if intake_of(evolved.spec).buffered:
            self._next_segment(connection, evolved, schema_version)
        else:  # after a revert the log is read again from where the lake ends, with the schema of then
            starts = buffer_hi | intake_of(evolved.spec).ends(head.bounds)
        following = corrected(
            head,
            views={name: swap.new for name, swap in swaps.items()},
            buffer_hi=buffer_hi,
            move_id=move_id,
            now=now,
        )
        narrowed = head.narrowed + evolved.narrows
        following = replace(following, schema_version=schema_version, narrowed=narrowed)
        for swap in swaps.values():
            frame.swap(swap)
        self._record(frame, evolved, following, starts=starts, base=head.version)
        return following

    def _check_none_corrected(self, connection: Connection) -> None:
        """Digests of the former columns prove the rows of replays. Raises: EvolutionRefused."""
        if count := len(connection.execute(sql("corrections/in_effect"), self._key).fetchall()):
            raise EvolutionRefused(
                f"{self._table.name}: {count:,} records were corrected by replays, and audits prove their rows with "
                "all the columns of then; no column can be dropped. Nothing was changed"
            )

    def _next_segment(self, connection: Connection, evolved: Evolved, schema_version: int) -> None:
        """Close the open segments, whose rows have the old schema, and open one for the new."""
        connection.execute(sql("buffer/lock_segments"), self._key)
        known = [rows.segment(row) for row in connection.execute(sql("buffer/segments"), self._key)]
        for segment in known:
            if segment.state == "open":
                connection.execute(sql("buffer/close_segment"), {**self._key, "segment": segment.name})
        self._make_segment(connection, self._table.table_id, known, spec=evolved.spec, schema_version=schema_version)

    def _record(
        self, frame: BoundaryFrame, evolved: Evolved, following: Version, *, starts: Mapping[int, int], base: int
    ) -> None:
        """The schema, the spec, the move, the version, the event."""
        connection = frame.connection
        key, words = {**self._key, "move_id": following.move_id}, Jsonb(dump_spec(evolved.spec))
        told = {"base_version": base, "schema_version": following.schema_version}
        if connection.execute(sql("evolve/record_move"), {**key, **told}).rowcount != 1:
            raise SchemaMoved(f"{self._table.name}: move {following.move_id} is over already; nothing was written")
        schema = {"fields": Jsonb([dict(f) for f in evolved.fields]), "spec": words}
        schema |= {"starts": Jsonb(vector_to_json(starts))}
        specs.write(connection, self._table, evolved.spec, what="this is a change", fields=evolved.fields)
        connection.execute(sql("ledger/insert_schema"), {**key, **schema, "schema_version": following.schema_version})
        frame.version(following)
        if evolved.narrows:  # their digests have a column more
            connection.execute(sql("evolve/forget_signed"), self._key)
        payload = {
            "version": following.version,
            "move": following.move_id,
            "stage": "evolve",
            "rows": 0,
            "schema_version": following.schema_version,
            "changes": list(evolved.told),
        } | ({} if evolved.schema_id is None else {"schema_id": evolved.schema_id})
        frame.event("published", payload)


def _prepared(swaps: Mapping[ViewName, Swap], locked: Mapping[ViewName, str]) -> Mapping[ViewName, Swap]:
    """*swaps*, where they still fit. Raises: PointerMoved."""
    for view, pointer in locked.items():
        check_pointer(swaps[view].old, pointer)
    return swaps
