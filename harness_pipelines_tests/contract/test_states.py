"""A state is its holder's, is committed at offsets that its tables have, and pins what shows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots, version_named
from harness_pipelines.ledgers.postgres.states import StateClaim, StateHeld, States, StateUnknown
from harness_pipelines.ports.ledger import NotInTime, TableRow, TableUnknown
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_lock_order import FOREIGN, stored_view
from harness_pipelines_tests.contract.test_locks import waits

HELD_BY = (
    "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND mode = 'ShareLock' AND granted"
)
KEYED = {"columns": {"id": {"type": "long", "required": True}, "s": "string"}, "key": ["id"]}


@pytest.fixture
def states(real: RealRig) -> States:
    return States(real.database)


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Two partitions of which 5 to 14 and 5 to 7 are ingested; of partition 0 version 2 has those below 9."""
    made = real.table(start=5)
    real.ingest(made, {0: (5, 15), 1: (5, 8)})
    real.move(made, {0: 5}, {0: 9})
    return made


@pytest.fixture
def name(real: RealRig, states: States) -> Iterator[str]:
    made = f"s-{uuid.uuid4().hex[:10]}"
    yield made
    real.ask("DELETE FROM harness.snapshots WHERE name LIKE 'state:s-%%'")
    real.ask("DELETE FROM harness.states WHERE name LIKE 's-%%'")


def let_end(real: RealRig, name: str) -> None:
    real.ask("UPDATE harness.states SET lease_until = clock_timestamp() - interval '1 s' WHERE name = %s", [name])


def commit(held: StateClaim, table: TableRow, offsets: Mapping[int, int], **words: Any) -> int:
    return held.commit({table.name: offsets}, **{"checkpoint": "c", "timeout_s": 0, **words})


def pins(real: RealRig, name: str) -> dict[int, dict[str, Any]]:
    """{number of the commit: {"version", and per partition its bounds}}, of one table."""
    found = real.ask(
        "SELECT s.name, p.version, p.bounds FROM harness.snapshots s LEFT JOIN harness.snapshot_tables p USING (name) "
        "WHERE s.name LIKE %s",
        [f"state:{name}:%"],
    )
    return {int(one["name"].rpartition(":")[2]): {"version": one["version"], **(one["bounds"] or {})} for one in found}


def leases(real: RealRig) -> dict[str, Any]:
    found = real.ask("SELECT name, epoch, lease_until, holder FROM harness.states ORDER BY name")
    return {one["name"]: (one["epoch"], one["lease_until"], one["holder"]) for one in found}


# -- who holds it -------------------------------------------------------------------------------------------


def test_a_state_is_held_by_one_and_free_when_its_time_is_over(real: RealRig, states: States, name: str):
    other = states.hold(f"{name}-other").take()
    first = states.hold(name).take()
    with pytest.raises(StateHeld, match=f"state {name} is held by another one until"):
        states.hold(name).take()
    let_end(real, name)
    before = leases(real)
    second = states.hold(name).take()
    assert (first._key["epoch"], second._key["epoch"]) == (1, 2)
    assert {one for one, now in leases(real).items() if now != before[one]} == {name}
    other.renew()


def test_a_hold_is_renewed_by_its_name_holder_and_epoch_together(states: States, name: str):
    held = states.hold(name).take()
    for wrong in ({"holder": str(uuid.uuid4())}, {"epoch": 7}, {"name": "s-unknown"}):
        with pytest.raises(FencedOut, match="is over; nothing was written"):
            states.call("states/renew", **{**held._key, **wrong}, lease=HOUR)
    held.renew()


def test_a_hold_whose_time_is_over_is_not_renewed_though_nobody_took_it(real: RealRig, states: States, name: str):
    held = states.hold(name).take()
    let_end(real, name)
    with pytest.raises(FencedOut):
        held.renew()


def test_a_renewal_lengthens_no_other_hold(real: RealRig, states: States, name: str):
    """Of the same holder, in the same epoch."""
    holder = str(uuid.uuid4())
    for one in (name, f"{name}-other"):
        states.call("states/hold", name=one, holder=holder, lease=MINUTE)
    before = leases(real)
    states.call("states/renew", name=name, holder=holder, epoch=1, lease=HOUR)
    assert {one for one, now in leases(real).items() if now != before[one]} == {name}


def test_who_lost_a_state_commits_nothing(real: RealRig, states: States, table: TableRow, name: str):
    late = states.hold(name).take()
    let_end(real, name)
    held = states.hold(name).take()
    with pytest.raises(FencedOut):
        commit(late, table, {0: 9})
    assert states.last(name) is None
    assert commit(held, table, {0: 9}) == 1


# -- what may be committed ----------------------------------------------------------------------------------


def test_offsets_from_the_start_up_to_what_is_ingested_can_be_committed(states: States, table: TableRow, name: str):
    held = states.hold(name).take()
    assert commit(held, table, {0: 5, 1: 5}) == 1
    assert commit(held, table, {0: 15, 1: 8}) == 2
    for wrong, error, message in (
        ({0: 16}, NotInTime, "partition 0 is ingested up to offset 15, not yet up to 16"),
        ({1: 9}, NotInTime, "partition 1 is ingested up to offset 8, not yet up to 9"),
        ({0: 4}, TableUnknown, "has no partition 0, or none that begins at or below offset 4"),
        ({0: 9, 2: 9}, TableUnknown, "has no partition 2"),
    ):
        with pytest.raises(error, match=message):
            commit(held, table, wrong)
    with pytest.raises(TableUnknown, match=r"there is no table no\.table"):
        held.commit({table.name: {0: 9}, "no.table": {0: 1}}, checkpoint="c")
    assert [one.seq for one in states.commits(name)] == [2, 1]


def test_what_is_pinned_ends_at_the_offsets(real: RealRig, states: States, table: TableRow, name: str):
    held = states.hold(name).take()
    commit(held, table, {0: 12, 1: 6})
    commit(held, table, {0: 7})
    assert pins(real, name) == {
        1: {
            "version": 2,
            "0": {"start": 5, "batch_hi": 5, "stream_hi": 9, "buffer_hi": 12},
            "1": {"start": 5, "batch_hi": 5, "stream_hi": 5, "buffer_hi": 6},
        },
        2: {
            "version": 2,
            "0": {"start": 5, "batch_hi": 5, "stream_hi": 7, "buffer_hi": 7},
            "1": {"start": 5, "batch_hi": 5, "stream_hi": 5, "buffer_hi": 5},
        },
    }


def merged(real: RealRig, table: TableRow, batch_hi: Mapping[int, Mapping[str, int]]) -> None:
    """Say how far each version is merged."""
    for version, his in batch_hi.items():
        for partition, hi in his.items():
            real.ask(
                "UPDATE harness.versions SET bounds = jsonb_set(bounds, ARRAY[%s::text], "
                'coalesce(bounds -> %s, \'{"start": 0, "stream_hi": 0, "buffer_hi": 0}\') || %s) '
                "WHERE table_id = %s AND version = %s",
                [partition, partition, Jsonb({"batch_hi": hi}), table.table_id, version],
            )


def four_versions(real: RealRig, **words: Any) -> TableRow:
    """Version n + 1 is merged up to offset 10 n of partition 0, and all that was adopted is merged."""
    made = real.table(partitions=1, **words)
    real.ask("UPDATE harness.ingest_positions SET buffer_hi = 40 WHERE table_id = %s", [made.table_id])
    for n in range(3):
        real.move(made, {0: 10 * n}, {0: 10 * n + 10})
    real.ask(
        "INSERT INTO harness.ingest_positions (table_id, partition, start, buffer_hi, schema_version) "
        "VALUES (%s, -1, 0, 3, 1)",
        [made.table_id],
    )
    merged(real, made, {n + 1: {"0": 10 * n, "-1": 3} for n in range(4)})
    return made


@pytest.mark.parametrize("keyed", [True, False])
def test_the_newest_version_that_is_merged_no_further_is_pinned(real: RealRig, states: States, name: str, keyed: bool):
    table, held = four_versions(real, **(KEYED if keyed else {})), states.hold(name).take()
    for number, (offset, version) in enumerate([(40, 4), (30, 4), (29, 3), (10, 2), (9, 1), (0, 1)], start=1):
        commit(held, table, {0: offset})
        pinned = pins(real, name)[number]
        assert (pinned["version"], pinned["0"]["batch_hi"]) == (version, 10 * (version - 1)), offset
        assert pinned["-1"] == {"start": 0, "batch_hi": 3, "stream_hi": 0, "buffer_hi": 3}, "adopted rows are in each"


def test_where_no_retained_version_is_merged_so_little_a_keyed_table_says_so_and_another_is_cut(
    real: RealRig, states: States, name: str
):
    held = states.hold(name).take()
    keyed, plain = four_versions(real, **KEYED), four_versions(real)
    for one in (keyed, plain):
        real.ask("UPDATE harness.tables SET retained_from = 3 WHERE table_id = %s", [one.table_id])
    commit(held, keyed, {0: 20})
    assert pins(real, name)[1]["version"] == 3, "the oldest that is retained"
    with pytest.raises(VersionGone, match="they are merged beyond them"):
        commit(held, keyed, {0: 19})
    commit(held, plain, {0: 19})
    pinned = pins(real, name)[2]
    assert (pinned["version"], pinned["0"]) == (4, {"start": 0, "batch_hi": 19, "stream_hi": 19, "buffer_hi": 19})


# -- offsets that are far ahead in one partition and behind what is merged in another -----------------------


def uneven(real: RealRig, **words: Any) -> TableRow:
    """Version 2 has 0 to 9 of both partitions, version 3 has 10 and 11 of partition 0 and has merged partition 1."""
    made = real.table(**words)
    real.ask("UPDATE harness.ingest_positions SET buffer_hi = 15 WHERE table_id = %s", [made.table_id])
    real.move(made, {0: 0, 1: 0}, {0: 10, 1: 10})
    real.move(made, {0: 10}, {0: 12})
    merged(real, made, {3: {"1": 10}})
    return made


def trimmed(real: RealRig, table: TableRow) -> None:
    """The buffer has let go of what is in the lake."""
    real.ask("UPDATE harness.lake_positions SET trim_floor = stream_hi WHERE table_id = %s", [table.table_id])


def recoloured(real: RealRig, table: TableRow) -> None:
    """Another schema begins at 11 of partition 0."""
    real.ask(
        "INSERT INTO harness.schemas (table_id, schema_version, fields, spec, starts) "
        'SELECT table_id, 2, fields, spec, \'{"0": 11, "1": 10}\' FROM harness.schemas WHERE table_id = %s',
        [table.table_id],
    )
    real.ask(
        "UPDATE harness.versions SET schema_version = 2 WHERE table_id = %s AND version >= 3",
        [table.table_id],
    )


def corrected(real: RealRig, table: TableRow, offset: int = 11) -> None:
    """Version 3 has a row of the record at *offset* of partition 0, which was held before."""
    real.ask(
        'INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, move_id) '
        "SELECT table_id, version, 0, %s, 'added', 'd', move_id FROM harness.versions "
        "WHERE table_id = %s AND version = 3",
        [offset, table.table_id],
    )


@pytest.mark.parametrize("since", [trimmed, recoloured, corrected])
def test_a_version_does_not_serve_that_cannot_show_what_lies_between_it_and_the_offsets(
    real: RealRig, states: States, name: str, since: Callable[[RealRig, TableRow], None]
):
    """Its own buffered rows are gone, or of another schema, or corrected by what would answer for them."""
    held = states.hold(name).take()
    plain, keyed = uneven(real), uneven(real, **KEYED)
    for one in (plain, keyed):
        since(real, one)
    commit(held, plain, {0: 15, 1: 1})
    assert pins(real, name)[1] == {
        "version": 3,
        "0": {"start": 0, "batch_hi": 0, "stream_hi": 12, "buffer_hi": 15},
        "1": {"start": 0, "batch_hi": 1, "stream_hi": 1, "buffer_hi": 1},
    }
    with pytest.raises(VersionGone, match="no retained version of .* shows its rows as of these offsets"):
        commit(held, keyed, {0: 15, 1: 1})
    commit(held, keyed, {0: 10, 1: 1})
    assert pins(real, name)[2]["version"] == 2, "all of it lies in the lake of then"


def corrected_at_the_first(real: RealRig, table: TableRow) -> None:
    corrected(real, table, offset=10)


def narrowed(real: RealRig, table: TableRow) -> None:
    """The version that reaches the offsets was made after a column was dropped."""
    real.move(table, {0: 12}, {0: 15})
    trimmed(real, table)
    real.ask("UPDATE harness.versions SET narrowed = 1 WHERE table_id = %s AND version = 4", [table.table_id])


def reverted(real: RealRig, table: TableRow) -> None:
    """An earlier version reached the offsets."""
    trimmed(real, table)
    bounds = {p: {"start": 0, "batch_hi": 0, "stream_hi": 15, "buffer_hi": 15} for p in ("0", "1")}
    real.ask(
        "UPDATE harness.versions SET bounds = %s WHERE table_id = %s AND version = 1", [Jsonb(bounds), table.table_id]
    )


@pytest.mark.parametrize("since", [corrected_at_the_first, narrowed, reverted])
def test_a_version_does_not_serve_whose_buffered_rows_no_later_one_has_as_they_were(
    real: RealRig, states: States, name: str, since: Callable[[RealRig, TableRow], None]
):
    table, held = uneven(real, **KEYED), states.hold(name).take()
    since(real, table)
    with pytest.raises(VersionGone, match="no retained version of .* shows its rows as of these offsets"):
        commit(held, table, {0: 15, 1: 1})


def test_a_version_serves_while_the_buffer_has_what_lies_between(real: RealRig, states: States, name: str):
    """What is trimmed, of another schema or corrected elsewhere, or of another table, changes nothing."""
    held, other = states.hold(name).take(), uneven(real, partitions=3, **KEYED)
    for since in (trimmed, recoloured, corrected):
        since(real, other)
    table = uneven(real, partitions=3, **KEYED)
    real.move(table, {1: 10, 2: 0}, {1: 15, 2: 15})
    trimmed(real, table)
    real.ask(
        "UPDATE harness.lake_positions SET trim_floor = 10 WHERE table_id = %s AND partition = 0", [table.table_id]
    )
    commit(held, table, {0: 15, 1: 1})
    assert pins(real, name)[1]["version"] == 2


def test_a_version_serves_where_the_log_has_what_lies_between(real: RealRig, states: States, name: str):
    table, held = uneven(real, buffer="none"), states.hold(name).take()
    trimmed(real, table)
    commit(held, table, {0: 15, 1: 1})
    assert pins(real, name)[1]["version"] == 2


def test_a_version_serves_where_the_schema_after_it_begins_at_the_offsets(real: RealRig, states: States, name: str):
    table, held = uneven(real, **KEYED), states.hold(name).take()
    recoloured(real, table)
    commit(held, table, {0: 11, 1: 1})
    assert pins(real, name)[1]["version"] == 2


def test_all_rows_below_the_offsets_of_a_state_are_found(real: RealRig, states: States, name: str):
    """Of those that the buffer once had, too, which were moved and trimmed."""
    table, held = real.table(), states.hold(name).take()
    real.ingest(table, {0: (0, 12), 1: (0, 10)})
    real.move(table, {0: 0, 1: 0}, {0: 10, 1: 10})
    real.move(table, {0: 10}, {0: 12})
    merged(real, table, {3: {"1": 10}})
    real.segments.rotate(table)
    real.ingest(table, {0: (12, 15)})
    real.pass_time(HOUR)
    claim = real.claim(table, Stage.EXPIRE)
    assert len(real.upkeep.trim(table, claim).retire) == 1

    commit(held, table, {0: 15, 1: 1})
    state = real.leases.look(table, holder="me", lease=HOUR, at=f"state:{name}")
    buffered = real.buffered(table)
    shown = {at for one in state.segments for at in buffered[one.name]}
    for partition, bounds in state.bounds.items():
        wanted = {(partition, offset) for offset in range(bounds.stream_hi, bounds.buffer_hi)}
        assert wanted <= shown, f"what the buffer has of partition {partition}"
    real.leases.end(state.lease_id)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_version_serves_whose_buffered_rows_a_later_one_has(real: RealRig, states: States, name: str, keyed: bool):
    """As they were: what was corrected after that, or elsewhere, changes nothing."""
    table, held = uneven(real, **(KEYED if keyed else {})), states.hold(name).take()
    real.move(table, {0: 12}, {0: 15})
    real.move(table, {1: 10}, {1: 15})
    trimmed(real, table)
    real.ask(
        'INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, move_id) '
        "SELECT v.table_id, v.version, c.partition, c.o, 'added', 'd', v.move_id FROM harness.versions v "
        "JOIN (VALUES (5, 0, 11), (4, 0, 9), (4, 0, 15), (4, 1, 0), (4, 1, 11)) AS c (version, partition, o) "
        "USING (version) WHERE v.table_id = %s",
        [table.table_id],
    )
    commit(held, table, {0: 15, 1: 1})
    assert pins(real, name)[1]["version"] == 2


def accepted(real: RealRig, table: TableRow) -> None:
    """The next version has rows of another writer."""
    head, view = real.ledger.head(table), stored_view(real, table)
    real.reconciler.accept(table, pointer=view.metadata, stream=view, on=head, move=FOREIGN)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_commit_and_its_readers_agree_on_the_version_that_answers_where_rows_of_another_writer_were_accepted(
    real: RealRig, states: States, name: str, after: int
):
    """No version has bounds of the pseudo-partition, and neither asks for them: no later correction is shown."""
    table, held = real.table(**KEYED), states.hold(name).take()
    real.ask("UPDATE harness.ingest_positions SET buffer_hi = 15 WHERE table_id = %s", [table.table_id])
    made = []
    for number, (lo, hi) in enumerate(
        [({0: 0, 1: 0}, {0: 10, 1: 10}), ({0: 10}, {0: 12}), ({0: 12}, {0: 15}), ({1: 10}, {1: 15})]
    ):
        made.append(real.move(table, lo, hi).version)
        if number == after:
            accepted(real, table)
    _, second, answering, later = made
    merged(real, table, {version: {"1": 10} for version in range(second, later + 1)})
    trimmed(real, table)
    real.ask(
        'INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, move_id) '
        "SELECT table_id, version, 0, 11, 'added', 'd', move_id FROM harness.versions "
        "WHERE table_id = %s AND version = %s",
        [table.table_id, later],
    )

    commit(held, table, {0: 15, 1: 1})
    assert set(pins(real, name)[1]) == {"version", "0", "1"}
    state = real.leases.look(table, holder="me", lease=HOUR, at=f"state:{name}")
    real.leases.end(state.lease_id)
    assert state.answered_by is not None and state.answered_by.version == answering


# -- what is kept -------------------------------------------------------------------------------------------


def test_a_commit_lets_go_of_what_older_ones_pin_but_for_the_one_before_and_those_that_are_read(
    real: RealRig, states: States, table: TableRow, name: str
):
    other, snapshot = states.hold(f"{name}-other").take(), f"s-{uuid.uuid4().hex[:10]}"
    Snapshots(real.database).create(snapshot, [table])
    held = states.hold(name).take()
    for number in (1, 2, 3):
        assert commit(other, table, {0: 5 + number}) == number, "each state counts by itself"
        assert commit(held, table, {0: 5 + number}) == number
    assert set(pins(real, name)) == {2, 3}
    assert set(pins(real, f"{name}-other")) == {2, 3}

    reading = real.leases.look(table, holder="me", lease=HOUR, at=2)
    commit(held, table, {0: 9})
    assert set(pins(real, name)) == {2, 3, 4}, "a reader of version 2 may be about to read it"
    assert set(pins(real, f"{name}-other")) == {2, 3}
    real.leases.end(reading.lease_id)
    elsewhere = real.table()
    busy = real.leases.look(elsewhere, holder="me", lease=HOUR)
    commit(held, table, {0: 9})
    assert set(pins(real, name)) == {4, 5}, "a reader of another table does not matter"
    real.leases.end(busy.lease_id)
    assert snapshot in [one.name for one in Snapshots(real.database).all()]
    Snapshots(real.database).drop(snapshot)


def test_a_state_is_read_as_of_its_own_last_commit(real: RealRig, states: States, table: TableRow, name: str):
    held, other = states.hold(name).take(), states.hold(f"{name}-other").take()
    for _ in range(3):
        commit(other, table, {0: 9})
    commit(held, table, {0: 6})
    with real.database.session() as connection:
        version, _ = version_named(connection, table, f"state:{name}")
    assert version == pins(real, name)[1]["version"]


def test_a_thousand_commits_of_each_state_are_kept(real: RealRig, states: States, table: TableRow, name: str):
    other, held = states.hold(f"{name}-other").take(), states.hold(name).take()
    for one in (other, held):
        commit(one, table, {0: 9})
    real.ask(
        "INSERT INTO harness.state_commits SELECT name, n, epoch, n::text, payload, sink, sources, committed_at "
        "FROM harness.state_commits, generate_series(2, 1000) n WHERE name = %s",
        [name],
    )
    commit(held, table, {0: 9})
    kept = [one.seq for one in states.commits(name, limit=2000)]
    assert kept == list(range(1001, 1, -1))
    assert [one.seq for one in states.commits(f"{name}-other")] == [1]
    assert [one.seq for one in states.commits(name, limit=2)] == [1001, 1000]


def test_each_state_is_shown_by_name_with_what_it_committed_last(states: States, table: TableRow, name: str):
    names = [f"{name}-{part}" for part in ("b", "c", "a")]
    for one in names:
        with states.hold(one) as held:
            commit(held, table, {0: 6}, checkpoint=f"first of {one}")
            commit(held, table, {0: 7}, checkpoint=f"last of {one}")
    found = [one for one in states.all() if one.name in names]
    assert [one.name for one in found] == sorted(names)
    assert [(one.last and one.last.checkpoint) for one in found] == [f"last of {one}" for one in sorted(names)]


def test_a_state_that_is_dropped_takes_what_it_pinned_with_it_and_nothing_else(
    real: RealRig, states: States, table: TableRow, name: str
):
    others = [f"{name}-other", name[:-1]]
    for one in others:
        commit(states.hold(one).take(), table, {0: 9})
    commit(states.hold(name).take(), table, {0: 9})
    with pytest.raises(StateHeld, match=f"state {name} is held until"):
        states.drop(name)
    let_end(real, name)
    states.drop(name)
    assert pins(real, name) == {}
    with pytest.raises(StateUnknown):
        states.commits(name)
    with pytest.raises(StateUnknown):
        states.drop(name)
    for one in others:
        assert set(pins(real, one)) == {1} and states.last(one) is not None


# -- who waits for whom -------------------------------------------------------------------------------------


def test_a_commit_waits_for_who_decides_what_is_removed_with_the_lower_table_first(
    real: RealRig, states: States, table: TableRow, name: str
):
    """Else expire removes what it pins. In one order, as two commits of the same tables would wait for each other."""
    second = real.table()
    assert second.table_id > table.table_id
    held = states.hold(name).take()
    locked: list[int] = []

    def run() -> None:
        held.commit({second.name: {0: 0}, table.name: {0: 9}}, checkpoint="c")

    def hold(connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(1752330865, %s)", [table.table_id])

    def look() -> None:
        with real.database.session() as connection:
            locked.append(connection.execute(HELD_BY, [second.table_id]).fetchall()[0]["n"])

    assert waits(real, run, hold=hold, meanwhile=look) == []
    assert locked == [0]
    assert states.last(name) is not None


def test_a_commit_and_a_drop_do_not_wait_for_another_state(real: RealRig, states: States, table: TableRow, name: str):
    held = states.hold(name).take()
    states.hold(f"{name}-other").take()
    with real.owner.transaction() as connection:
        connection.execute("SELECT FROM harness.states WHERE name = %s FOR UPDATE", [f"{name}-other"])
        assert commit(held, table, {0: 9}) == 1
        held.release()
        states.drop(name)


def test_a_drop_waits_for_who_is_taking_the_state_and_leaves_it_then(real: RealRig, states: States, name: str):
    states.hold(name).take().release()

    def take(connection: Connection) -> None:
        connection.execute("SELECT harness.state_hold(%s, gen_random_uuid(), interval '1 hour')", [name])

    [refused] = waits(real, lambda: states.drop(name), hold=take)
    assert isinstance(refused, StateHeld)
    assert states.status(name).held_until is not None
