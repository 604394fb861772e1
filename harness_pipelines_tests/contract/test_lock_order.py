"""What each act locks before it looks: held up by one of these locks, it waits at that lock and has judged nothing."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness_pipelines.buffers.postgres.writer import Segments
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.errors import HarnessError, OutcomeUnknown
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ledgers.postgres.boundary import BoundaryCommit, BoundaryFrame
from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
from harness_pipelines.ledgers.postgres.requests.recall import Recalls
from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.ports.repair import AdoptedMove, Adoption
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest as Asked
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.schema.evolution import ColumnChanges, evolved
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import View
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive, iceberg_fields
from harness_pipelines_tests.contract.bystander import Bystander
from harness_pipelines_tests.contract.cut_drafts import server_of
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig, fresh_view
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

OverlayRequest = Callable[[], object]
#: {lock: how another session holds it, and what the statement that takes it has in it}
LOCKS: Mapping[str, tuple[str, str]] = {
    "table": (
        "SELECT FROM harness.tables WHERE table_id = %(table_id)s FOR NO KEY UPDATE",
        r"^(WITH locked [^;]*)?SELECT table_id[^;]* FROM harness.tables\s[^;]*FOR (NO KEY )?UPDATE\b",
    ),
    "moment": (  # as a reader of a moment has it, for one statement
        "SELECT pg_advisory_xact_lock_shared(1752330869, %(table_id)s)",
        r"^WITH locked [^;]*pg_advisory_xact_lock\(",
    ),
    "pointer": (
        "SELECT FROM public.iceberg_tables WHERE table_namespace = %(namespace)s AND table_name = %(view)s FOR UPDATE",
        r"^SELECT [^;]*FROM public.iceberg_tables[^;]*FOR UPDATE$",
    ),
    "positions": (
        "SELECT FROM harness.lake_positions WHERE table_id = %(table_id)s FOR NO KEY UPDATE",
        r"^SELECT [^;]*FROM harness.lake_positions[^;]*FOR NO KEY UPDATE$",
    ),
    "move": (
        "SELECT FROM harness.moves WHERE table_id = %(table_id)s AND state = 'PLANNED' FOR NO KEY UPDATE",
        r"^SELECT [^;]*FROM harness.moves[^;]*FOR NO KEY UPDATE$",
    ),
    "claims": (
        "SELECT FROM harness.claims WHERE table_id = %(table_id)s FOR UPDATE",
        r"^SELECT [^;]*FROM harness.claims[^;]*FOR (KEY SHARE|UPDATE|NO KEY UPDATE)$",
    ),
    "trim": (
        "SELECT pg_advisory_xact_lock(1752330865, %(table_id)s)",
        r"^SELECT (pg_advisory_xact_lock(_shared)?\(|harness\.(named_)?cut_(prepare|retire)\(|"
        r"[a-z_, .:()$0-9]* FROM harness\.(named_)?cut_publish\()",
    ),
    "cuts": (
        "SELECT pg_advisory_xact_lock(1752330871, %(table_id)s)",
        r"^SELECT (harness\.(named_)?cut_retire\(|[a-z_, .:()$0-9]* FROM harness\.(named_)?cut_publish\()",
    ),
    "cut": (
        "SELECT FROM harness.cuts WHERE table_id = %(table_id)s FOR UPDATE",
        r"^SELECT (harness\.cut_(serve|retire)\(|[a-z_, .:()$0-9]* FROM harness\.cut_publish\()",
    ),
    "segment": (
        "SELECT FROM harness.segments WHERE table_id = %(table_id)s FOR KEY SHARE",
        r"^SELECT [^;]*FROM harness.segments[^;]*FOR UPDATE$",
    ),
    "closing": (
        "SELECT FROM harness.segments WHERE table_id = %(table_id)s FOR UPDATE",
        r"^SELECT [^;]*FROM harness.segments[^;]*FOR KEY SHARE$",
    ),
    "ingest": ("SELECT pg_advisory_xact_lock(1752330868, %(table_id)s)", r"^SELECT pg_advisory_xact_lock\("),
    "segments": ("SELECT pg_advisory_xact_lock(1752330866, %(table_id)s)", r"^SELECT pg_advisory_xact_lock\("),
}
_RELATIONS = {"pointer": "iceberg_tables", "move": "moves", "positions": "lake_positions", "claims": "claims"}
_HOLDS = """
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE %s = ANY(pg_blocking_pids(l.pid)) AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.granted
"""
_NAMESAKES = """
SELECT FROM public.iceberg_tables WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s FOR UPDATE
"""
_WAITS_AT = "SELECT query FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


@pytest.fixture
def other(real: RealRig) -> Iterator[Database]:
    """Sessions of somebody else, who may see what all are doing."""
    made = Database(real.dsn, role=None, size=2)
    yield made
    made.close()


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=1, views="stream")
    real.ingest(made, {0: (0, 20)})
    real.move(made, {0: 0}, {0: 10})
    return made


def publish(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    return lambda: real.publish(table, claim, move)


def plan(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table)
    return lambda: real.plan(table, claim, {0: 10}, {0: 20})


def close(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    return lambda: real.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="a test")


def apply(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.ledger.update_spec(table, table.spec.model_copy(update={"quarantine_mb": 65}))


def apply_decoding(real: RealRig, table: TableRow) -> OverlayRequest:
    """As long as no record has become a row."""
    real.ask("UPDATE harness.moves SET rows = 0 WHERE table_id = %s", [table.table_id])
    real.ledger.release(real.claim(table, Stage.INGEST))  # there is a row to lock
    return lambda: real.ledger.update_spec(table, table.spec, decoding=True)


def join(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table, Stage.INGEST)
    return lambda: real.ledger.add_partitions(claim, {1: 0})


def look(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.corrections(table).look([(0, 1)])


def give_up(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.corrections(table).drop([(0, 1)], by="me")


def evolve(real: RealRig, table: TableRow) -> OverlayRequest:
    changes = ColumnChanges(add=(Column(name="more", type=Primitive("string")),))
    found = evolved(table.spec, table.history[-1].fields, changes, next_id=1000)
    head = real.ledger.head(table)

    def build(pointers: Any, _move_id: int) -> Any:
        base = head.stream.snapshot
        return {v: Swap(view=v, old=old, base_snapshot=base, new=fresh_view()) for v, old in pointers.items()}

    return lambda: real.evolutions(table).publish(found, build, by="me")


def plan_revert(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.ledger.plan_revert(table, to=None, log_from={})


def revert(real: RealRig, table: TableRow) -> OverlayRequest:
    def build(view: Any, base: str, head: Any, _target: Any, _move_id: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.stream.snapshot, new=fresh_view())

    claim = real.claim(table)  # there are rows to lock
    real.plan(table, claim, {0: 10}, {0: 20})
    real.ledger.release(claim)
    return lambda: real.ledger.revert(table, to=None, log_from={}, build=build)


def trim(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table, Stage.EXPIRE)
    return lambda: real.upkeep.trim(table, claim)


def delete_files(real: RealRig, table: TableRow) -> OverlayRequest:
    claim, upkeep = real.claim(table, Stage.EXPIRE), real.upkeep
    return lambda: upkeep.delete_ripe(table, claim)  # type: ignore[attr-defined]


def move_bytes(real: RealRig, table: TableRow) -> OverlayRequest:
    small = replace(table, spec=table.spec.model_copy(update={"quarantine_mb": 1}))
    claim = real.claim(table, Stage.EXPIRE)
    for first in (0, 4):  # its table is in the catalog from the first batch on
        real.ask(
            'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value) '
            "SELECT %s, 0, o, 'malformed', 'no JSON', convert_to(repeat(md5(o::text), 20000), 'UTF8') "
            "FROM generate_series(%s::int, %s::int) AS o",
            [table.table_id, first, first + 3],
        )
        if not first:
            assert real.raw_bytes.move(small, claim).records
    return lambda: real.raw_bytes.move(small, claim)


def ask_recall(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Recalls(real.database).ask(table, Asked.RECALL, where="id = 1", by="me")


def ask_recluster(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Reclusters(real.database).ask(table, paths=(), upto=1, rebuild=False)


def cancel_recall(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Recalls(real.database).cancel(table)


def drop(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: drop_table(real.database, table, catalog=CATALOG)


def take_snapshot(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Snapshots(real.database).create(f"s{uuid.uuid4().hex[:8]}", [table])


def drop_snapshot(real: RealRig, table: TableRow) -> OverlayRequest:
    name = f"s{uuid.uuid4().hex[:8]}"
    Snapshots(real.database).create(name, [table])
    return lambda: Snapshots(real.database).drop(name)


def read(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.leases.look(table, holder="me", lease=HOUR)


def prepare_cut(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: server_of(real, table).cuts.newest(table)


def publish_cut(real: RealRig, table: TableRow) -> OverlayRequest:
    server = server_of(real, table)
    server.cut()
    draft = server.look().draft()
    return lambda: server.publish(draft)


def serve_cut(real: RealRig, table: TableRow) -> OverlayRequest:
    server = server_of(real, table)
    cut = server.cut()
    key = [table.table_id]
    real.ask("UPDATE harness.cuts SET served_at = served_at - interval '2 seconds' WHERE table_id = %s", key)
    return lambda: server.cuts.serve(cut, keep=HOUR)


def retire_cut(real: RealRig, table: TableRow) -> OverlayRequest:
    server = server_of(real, table)
    cut = server.cut()
    return lambda: server.cuts.retire(cut)


def publish_named_cut(real: RealRig, table: TableRow) -> OverlayRequest:
    name, server = f"s{uuid.uuid4().hex[:8]}", server_of(real, table)
    Snapshots(real.database).create(name, [table])
    assert server.cuts.named(table, name) is not None
    server.state = real.leases.look(table, holder="server", lease=HOUR, at=name)
    draft, lease_id = server.draft(), server.state.lease_id
    return lambda: server.cuts.publish_named(table, draft, lease_id=lease_id, keep=HOUR)


def hold_head(real: RealRig, table: TableRow) -> OverlayRequest:
    """As fsck does, for as long as it looks."""

    def act() -> None:
        with TableStates(real.database, CATALOG).held(table.name):
            pass

    return act


def reconcile(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.reconciler.go_on(table, lost=(), retained_from=0)


def begin_history(real: RealRig, table: TableRow) -> OverlayRequest:
    """As the first worker does after a stand-by was promoted."""
    real.ask("UPDATE harness.tables SET history = 'another/1' WHERE table_id = %s", [table.table_id])
    return lambda: TableHistories(real.owner).begin(table, event="promoted")


FOREIGN = AdoptedMove(move_id=None, stage="tier", lo={FOREIGN_PARTITION: 0}, hi={FOREIGN_PARTITION: 2}, rows=2)


def stored_view(real: RealRig, table: TableRow) -> View:
    """An empty view that has files, which the catalog names from now on."""
    views, _ = real.lake.make_views(table.spec, iceberg_fields(table.spec.columns))
    real.ask(
        "UPDATE public.iceberg_tables SET metadata_location = %s "
        "WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
        [views["stream"].metadata, CATALOG, table.spec.namespace, table.views["stream"]],
    )
    return views["stream"]


def adopt(real: RealRig, table: TableRow) -> OverlayRequest:
    view = stored_view(real, table)
    adoption = Adoption(pointer=view.metadata, head=view, starts={0: 0}, stream_hi={0: 10}, buffer_hi={0: 20})
    return lambda: real.reconciler.adopt(table, adoption, lost=(), retained_from=0)


def reserve_foreign(real: RealRig, table: TableRow) -> OverlayRequest:
    head = real.ledger.head(table)
    return lambda: real.reconciler.reserve(table, FOREIGN, on=head)


def accept_foreign(real: RealRig, table: TableRow) -> OverlayRequest:
    head, view = real.ledger.head(table), stored_view(real, table)
    reconciler = real.reconciler
    return lambda: reconciler.accept(table, pointer=view.metadata, stream=view, on=head, move=FOREIGN)


def make_branch(real: RealRig, table: TableRow) -> OverlayRequest:
    view, claim = stored_view(real, table), real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    return lambda: real.lake.make_branch(table, move, view)


def drop_branches(real: RealRig, table: TableRow) -> OverlayRequest:
    view, mover = stored_view(real, table), real.claim(table)
    move = real.plan(table, mover, {0: 10}, {0: 20})
    real.lake.make_branch(table, move, view)
    claim = real.claim(table, Stage.EXPIRE)
    return lambda: real._lake.drop_branches(table, [move.branch], claim=claim)


def restore_columns(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: real.reconciler.restore_columns(table)


def swap(real: RealRig, table: TableRow) -> OverlayRequest:
    """A part of what reconcile does."""
    reconciler, was = real.reconciler, real.ledger.pointer(table, "stream")

    def act() -> None:
        with real.owner.transaction() as connection:
            reconciler._swap(
                BoundaryFrame(connection, table, real.pointers), "stream", old=was, new=fresh_view().metadata
            )

    return act


def take_over(real: RealRig, table: TableRow) -> OverlayRequest:
    real.claim(table, lease=MINUTE)
    real.pass_time(2 * MINUTE)
    return lambda: real.ledger.claim(table, Stage.TIER, shard=0, holder=str(uuid.uuid4()), lease=HOUR)


def try_again(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    return lambda: real.ledger.take_attempt(claim, move, run_id=None)


def resolve(real: RealRig, table: TableRow) -> OverlayRequest:
    """After a lost answer: what was sent may still be under way."""
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    real.publish(table, claim, move)
    commit = BoundaryCommit(
        database=real.database,
        table=table,
        catalog=real.pointers,
        act="tier",
        move_id=move.move_id,
        sent=move,
    )
    return lambda: commit.resolve(OutcomeUnknown("a test"))


def ingest(real: RealRig, table: TableRow) -> OverlayRequest:
    claim = real.claim(table, Stage.INGEST)
    return lambda: real.ingest(table, {0: (20, 30)}, claim=claim)


def make_segment(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Segments(real.database, bytes_max=10**10).rotate(table)


ACTS: Mapping[Callable[[RealRig, TableRow], OverlayRequest], tuple[str, ...]] = {
    publish: ("table", "moment", "pointer", "move", "positions", "claims"),
    plan: ("table", "claims"),
    close: ("move", "claims"),
    apply: ("table",),
    apply_decoding: ("table", "claims"),
    join: ("table", "claims"),
    look: ("table", "moment", "pointer", "positions", "trim"),
    give_up: ("table",),
    evolve: ("table", "moment", "pointer", "trim", "ingest", "segments"),
    plan_revert: ("table", "pointer", "positions", "trim"),
    revert: ("table", "moment", "pointer", "move", "positions", "trim", "claims"),
    trim: ("table", "positions", "trim", "claims"),
    delete_files: ("trim", "claims"),
    move_bytes: ("table", "pointer", "claims"),
    ask_recall: ("table",),
    cancel_recall: ("table",),
    ask_recluster: ("table",),
    drop: ("table", "pointer", "trim"),
    take_snapshot: ("trim",),
    drop_snapshot: ("trim",),
    read: ("trim",),
    prepare_cut: ("trim",),
    publish_cut: ("trim", "cuts", "cut"),
    serve_cut: ("cut",),
    retire_cut: ("trim", "cuts", "cut"),
    publish_named_cut: ("trim", "cuts"),
    hold_head: ("trim",),
    reconcile: ("table", "moment", "trim"),
    adopt: ("table", "moment", "pointer", "positions", "trim"),
    reserve_foreign: ("table",),
    accept_foreign: ("table", "moment", "pointer", "trim"),
    make_branch: ("move", "trim"),
    drop_branches: ("trim", "claims"),
    restore_columns: ("table",),
    begin_history: ("table", "moment"),
    swap: ("pointer",),
    take_over: ("claims",),
    try_again: ("claims",),
    resolve: ("table",),
    ingest: ("closing",),
    make_segment: ("segments", "segment"),
}


@pytest.mark.parametrize(
    ("make", "lock"),
    [pytest.param(make, lock, id=f"{make.__name__}-{lock}") for make, locks in ACTS.items() for lock in locks],
)
def test_an_act_waits_at_the_lock_of_what_it_is_going_to_judge(
    real: RealRig, table: TableRow, other: Database, make: Callable[[RealRig, TableRow], OverlayRequest], lock: str
):
    hold, takes = LOCKS[lock]
    act, failed = make(real, table), list[HarnessError]()

    def run() -> None:
        try:
            act()
        except HarnessError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    view = table.quarantine if make is move_bytes else table.tiered_view
    with other.transaction() as connection:
        key = {"table_id": table.table_id, "namespace": table.spec.namespace, "view": view}
        connection.execute(hold, key)
        thread.start()
        pid = connection.info.backend_pid
        wait_until(lambda: _waits_at(other, pid) is not None or not thread.is_alive(), "it waits, or is over")
        found, holds = _waits_at(other, pid), _locked_by_whom_waits(other, pid)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert found is not None, f"it did not wait: {failed}"
    assert re.search(takes, found), f"it waited later, at: {found}"
    later = {_RELATIONS[one] for one in ACTS[make][ACTS[make].index(lock) + 1 :] if one in _RELATIONS}
    assert not later & holds, f"it has locked rows of {later & holds} before"
    assert not failed


@pytest.mark.parametrize("make", ACTS, ids=lambda make: make.__name__)
def test_an_act_does_not_wait_for_those_of_another_table(
    real: RealRig,
    table: TableRow,
    other: Database,
    bystander: Bystander,
    make: Callable[[RealRig, TableRow], OverlayRequest],
):
    """Nor for tables of the same names, of another catalog or namespace."""
    act, failed = make(real, table), list[HarnessError]()

    def run() -> None:
        try:
            act()
        except HarnessError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with other.transaction() as connection:
        key = {"table_id": bystander.table.table_id, "namespace": bystander.table.spec.namespace}
        for hold, _ in LOCKS.values():
            connection.execute(hold, {**key, "view": bystander.table.tiered_view})
        for catalog, namespace in real.namesakes(table):
            connection.execute(_NAMESAKES, {"catalog": catalog, "namespace": namespace})
        pid = connection.info.backend_pid
        thread.start()
        wait_until(lambda: _waits_at(other, pid) is not None or not thread.is_alive(), "it waits, or is over")
        found = _waits_at(other, pid)
    thread.join(DEADLINE_S)
    assert found is None, f"it waited at: {found}"
    assert not failed


def _locked_by_whom_waits(database: Database, pid: int) -> set[str]:
    """The relations of which the session that is held up by *pid* has locked rows, but for the one it waits for."""
    with database.session() as connection:
        found = connection.execute(_HOLDS, [pid]).fetchall()
        connection.rollback()
    return {str(row["relname"]) for row in found}


def _waits_at(database: Database, pid: int) -> str | None:
    """The statement that is held up by the session *pid*."""
    with database.session() as connection:
        found = connection.execute(_WAITS_AT, [pid]).fetchone()
        connection.rollback()
    return re.sub(r"--[^\n]*\n", "", str(found["query"])).strip() if found else None
