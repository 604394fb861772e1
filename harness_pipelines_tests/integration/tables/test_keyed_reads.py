"""Keyed tables through their stages: reads, rows by key and changes, against the producer's own log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

import harness_pipelines as hp
from harness_pipelines.buffers.postgres.newest import Glances
from harness_pipelines.cli.main import cli
from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg.read import scan
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ports.ledger import ReadState, TableRow
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.reading.queries import HotQuery
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.read.point import KeyUnfit
from harness_pipelines.spec.arrow import COORDINATES
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sections.keys import KEY_TYPES
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.every_type import WAYS
from harness_pipelines_tests.integration.tables.test_types import drawn
from harness_pipelines_tests.keyed import EVERYTHING, Change, KeyedRig, NumbersRig, row
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig, environment

MakeKeyed = Callable[..., NumbersRig]
SHOWN = ["_kafka_partition", "_kafka_offset", "id", "n"]


@pytest.fixture
def make_keyed(harness: hp.Harness, kafka: KafkaRig) -> MakeKeyed:
    return partial(NumbersRig, harness, kafka)


def changes_of(found: Any) -> list[Change]:
    return [Change(*row) for row in zip(*(found.column(name).to_pylist() for name in SHOWN), strict=True)]


def state(rig: NumbersRig, **options: Any) -> list[Change]:
    return sorted(changes_of(rig.table.read(columns=SHOWN, **options)))


def expected(rig: NumbersRig, below: dict[int, int] | None = None) -> list[Change]:
    return rig.newest(below)


def vector(rig: NumbersRig, version: int) -> dict[int, int]:
    [found] = [v for v in rig.table.versions() if v.version == version]
    return found.buffer_hi


def filled(rig: NumbersRig) -> None:
    """Keys in the lake, above it in the buffer, and both; deletes that hide either."""
    rig.put_numbers({i: i for i in range(12)})
    rig.put_numbers({i: 20 + i for i in range(4)})
    rig.delete_numbers(5, 99)
    rig.ingest()
    rig.tier()
    rig.put_numbers({5: 50, 6: 60, 20: 200})
    rig.delete_numbers(0, 7)
    rig.ingest()


def test_reads_and_gets_are_the_newest_puts_in_arrow_and_in_spark(make_keyed: MakeKeyed):
    rig = make_keyed()
    filled(rig)
    assert state(rig) == expected(rig)
    frame = rig.table.to_spark(rig.stores.spark(), columns=SHOWN)
    assert sorted(changes_of(frame.toArrow())) == expected(rig)

    now = {change.id: change.n for change in rig.newest()}
    ids = [*range(12), 20, 99, 1234]
    assert rig.table.get_many(ids) == [None if i not in now else {"id": i, "n": now[i]} for i in ids]
    assert rig.table.get({"id": 6}, columns=["n", "_op"]) == {"n": 60, "_op": "put"}


def test_a_key_that_the_buffer_knows_is_not_looked_for_in_the_lake(make_keyed: MakeKeyed, monkeypatch: Any):
    rig = make_keyed()
    filled(rig)
    opened: list[str] = []
    pinned = scan.pinned

    def noted(metadata: str) -> scan.PinnedView:
        opened.append(metadata)
        return pinned(metadata)

    leased: list[str] = []
    look = Leases.look

    def lease(leases: Leases, table: TableRow, **more: Any) -> ReadState:
        leased.append(table.name)
        return look(leases, table, **more)

    monkeypatch.setattr(scan, "pinned", noted)
    monkeypatch.setattr(Leases, "look", lease)

    assert rig.table.get_many([5, 7, 20]) == [{"id": 5, "n": 50}, None, {"id": 20, "n": 200}]
    assert opened == leased == []
    assert rig.table.get_many([5, 8]) == [{"id": 5, "n": 50}, {"id": 8, "n": 8}]
    assert opened != []
    assert leased == [rig.name]


def test_a_segment_that_goes_before_the_get_costs_two_more_looks(make_keyed: MakeKeyed, monkeypatch: Any):
    rig = make_keyed()
    filled(rig)
    look, asked = Glances.look, list[HotQuery | None]()

    def late(glances: Glances, table: TableRow, wanted: HotQuery | None = None) -> Any:
        asked.append(wanted)
        if wanted is not None and len(asked) == 3:
            wanted = replace(wanted, segments=(replace(wanted.segments[0], name="seg_that_is_gone"),))
        return look(glances, table, wanted)

    monkeypatch.setattr(Glances, "look", late)
    assert rig.table.get(5) == {"id": 5, "n": 50}
    assert [wanted is not None for wanted in asked] == [False, True]
    assert rig.table.get_many([5, 7, 20]) == [{"id": 5, "n": 50}, None, {"id": 20, "n": 200}]
    assert [wanted is not None for wanted in asked] == [False, True, True, False, True]


def test_what_a_get_remembers_of_the_table_is_only_where_it_looks_first(make_keyed: MakeKeyed, monkeypatch: Any):
    rig = make_keyed()
    filled(rig)
    looks, look = list[Any](), Glances.look

    def noted(glances: Glances, table: TableRow, wanted: HotQuery | None = None) -> Any:
        looks.append(look(glances, table, wanted))
        return looks[-1]

    assert rig.table.get(6) == {"id": 6, "n": 60}
    monkeypatch.setattr(Glances, "look", noted)
    rig.put_numbers({6: 61, 8: 80})
    rig.ingest()
    assert rig.table.get_many([6, 8]) == [{"id": 6, "n": 61}, {"id": 8, "n": 80}]
    assert [rows.num_rows for _, rows in looks] == [2]
    rig.tier()  # its rows stay in the segment for a while, below the bounds
    assert rig.table.get_many([6, 8, 5]) == [{"id": i, "n": n} for i, n in ((6, 61), (8, 80), (5, 50))]
    assert [rows.num_rows for _, rows in looks] == [2, 0]
    rig.put_numbers({8: 81})
    rig.ingest()
    assert rig.table.get(8) == {"id": 8, "n": 81}
    rig.harness.table(rig.name).evolve(ColumnChanges(add=(Column(name="more", type=parse_type("int")),)))
    rig.send([((8,), {"id": 8, "n": 82, "more": 1})])  # to another segment, while the older row is hot too
    rig.ingest()
    assert rig.table.get(8) == {"id": 8, "n": 82, "more": 1}


def test_a_key_that_meets_two_partitions_in_the_buffer_is_named_by_a_get(make_keyed: MakeKeyed):
    rig = make_keyed()
    rig.put_numbers({1: 1, 2: 2})
    rig.send([((1,), {"id": 1, "n": 9})], partition=0)
    rig.ingest()

    assert rig.table.get(2) == {"id": 2, "n": 2}
    with pytest.raises(KeyInTwoPartitions, match=r"key id=1 is in partition . \(offset [01]\) and in partition . "):
        rig.table.get(1)


def test_keys_and_rows_of_every_type_are_got_from_the_buffer_as_they_are_read(
    harness: hp.Harness, kafka: KafkaRig, monkeypatch: Any
):
    way = WAYS["json"]()
    key = [name for name, kind in way.columns.items() if kind.partition("(")[0] in KEY_TYPES]
    rig = TableRig(harness, kafka, columns=dict(way.columns), partitions=1, key=key)
    kafka.produce(rig.topic, 0, [payload for payload, _ in drawn(way)])
    rig.ingest()
    rows = rig.table.read().to_pylist()
    coordinates = rig.table.read(columns=[*key, *COORDINATES.names]).to_pylist()
    assert len(rows) > 20

    monkeypatch.setattr(Leases, "look", None)  # the buffer has them all
    got = rig.table.get_many([{name: row[name] for name in key} for row in rows])
    assert list(map(repr, got)) == list(map(repr, rows))
    for one in coordinates[:3]:
        assert rig.table.get({name: one[name] for name in key}, columns=list(one)) == one


def test_changes_of_adjoining_versions_are_those_of_both(make_keyed: MakeKeyed):
    rig = make_keyed()
    filled(rig)
    rig.tier()
    rig.put_numbers({1: 1001})
    rig.delete_numbers(2)
    rig.ingest()
    first, *_, last = [v.version for v in rig.table.versions()]

    def log(low: dict[int, int], high: dict[int, int] | None) -> list[Change]:
        return sorted(
            c
            for c in rig.changes
            if c.offset >= low.get(c.partition, 0) and (high is None or c.offset < high[c.partition])
        )

    for since in range(first, last + 1):
        assert changes_of(rig.table.changes(since)) == log(vector(rig, since), None)
        for to in range(since, last + 1):
            found = rig.table.changes(since, to)
            assert changes_of(found) == log(vector(rig, since), vector(rig, to))
            assert found["_op"].to_pylist() == [c.op for c in changes_of(found)]
    for version in range(first, last):
        assert state(rig, at=version) == expected(rig, vector(rig, version))


def test_rows_whose_key_begins_so_are_read_from_all_tiers(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    for n, ids in enumerate(([1, 2, 3], [2, 3, 4], [3, 5])):
        rig.put(*(row(id_, region, n=n) for id_ in ids for region in ("eu", "us", None)))
        rig.delete((ids[0], "us"))
        rig.to_stream() if n < 2 else rig.ingest()
        if n == 0:
            rig.merge()
    state = rig.state(EVERYTHING)
    for id_ in range(7):
        expected = sorted((key[1] or "", found[2]) for key, found in state.items() if key[0] == id_)
        for prefix in ((id_,), {"id": id_}):
            rows = rig.table.scan(prefix, columns=["region", "n"])
            regions = [region or "" for region in rows["region"].to_pylist()]
            assert sorted(zip(regions, rows["n"].to_pylist(), strict=True)) == expected
    for wrong in ((), (1, "eu"), {"region": "eu"}, ("x",)):
        with pytest.raises(KeyUnfit):
            rig.table.scan(wrong)


def what_changed(rig: NumbersRig, low: dict[int, int], high: dict[int, int] | None) -> list[tuple[Any, ...]]:
    """Kind, coordinate of the record, id and n: the producer's log played over the state below *low*."""
    found: list[tuple[Any, ...]] = []
    state: dict[int, int] = {}
    for c in sorted(rig.changes):
        if high is not None and c.offset >= high[c.partition]:
            continue
        was = state.pop(c.id, None)
        if c.n is not None:
            state[c.id] = c.n
        if c.offset < low.get(c.partition, 0):
            continue
        told = [("-D" if c.n is None else "-U", was)] if was is not None else []
        told += [("+I" if was is None else "+U", c.n)] if c.n is not None else []
        found += [(kind, c.partition, c.offset, c.id, n) for kind, n in told]
    return found


def test_pre_images_are_the_rows_that_each_record_replaced_or_deleted(make_keyed: MakeKeyed):
    rig = make_keyed()
    filled(rig)
    rig.tier()
    rig.put_numbers({1: 1001, 30: 1})
    rig.put_numbers({1: 1002, 30: 2})
    rig.delete_numbers(2, 30, 98)
    rig.put_numbers({30: 3, 2: 4})
    rig.ingest()
    first, *_, last = [v.version for v in rig.table.versions()]

    def told(since: int, to: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
        rows = rig.table.changes(since, to, pre_images=True, columns=["id", "n"], **options)
        return list(zip(*(rows.column(name).to_pylist() for name in ["_change_type", *SHOWN]), strict=True))

    for since in range(first, last + 1):
        assert told(since) == what_changed(rig, vector(rig, since), None)
        for to in range(since, last + 1):
            assert told(since, to) == what_changed(rig, vector(rig, since), vector(rig, to))
    played = what_changed(rig, vector(rig, last - 1), None)
    assert {kind for kind, *_ in played} == {"+I", "-U", "+U", "-D"}  # or nothing was tested
    assert told(last - 1, where="n >= 1000") == [one for one in played if one[-1] >= 1000]
    assert told(last - 1, where="id IN (1, 2) AND n < 1001") == [
        one for one in played if one[3] in (1, 2) and one[-1] < 1001
    ]
    rows = rig.table.changes(last - 1, columns=["n"], where="_op = 'delete'", pre_images=True)
    assert set(rows["_change_type"].to_pylist()) == {"-D"} and None not in rows["n"].to_pylist()


def test_more_changed_keys_than_are_looked_up_one_by_one_have_pre_images(make_keyed: MakeKeyed):
    rig = make_keyed(views="both")
    rig.put_numbers({i: i for i in range(700)})
    rig.ingest()
    rig.tier()
    since = rig.table.versions()[-1].version
    rig.put_numbers({i: -i for i in range(600, 1000)})
    rig.ingest()

    found = rig.table.changes(since, pre_images=True)

    kinds = found["_change_type"].to_pylist()
    assert [kinds.count(kind) for kind in ("-U", "+U", "+I")] == [100, 100, 300]
    was = found.filter([kind == "-U" for kind in kinds])
    assert was["n"].to_pylist() == was["id"].to_pylist()


def test_an_append_table_has_no_pre_images(harness: hp.Harness, kafka: KafkaRig):
    rig = TableRig(harness, kafka)
    with pytest.raises(UsageError, match="has no key: its records replace nothing"):
        rig.table.changes(rig.table.versions()[0].version, pre_images=True)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"n": 1}, r"the key is \(id\), not \(n\)"),
        ((1, 2), r"the key is \(id\): 1 values, not 2"),
        ("x", "id is long: it cannot be compared with text"),
        ([object()], "of Python's type object is none"),
    ],
)
def test_what_is_no_key_is_refused_with_the_columns_of_the_key(make_keyed: MakeKeyed, key: Any, message: str):
    with pytest.raises(KeyUnfit, match=message):
        make_keyed().table.get(key)


def test_the_command_line_gets_rows_and_changes(make_keyed: MakeKeyed):
    rig = make_keyed()
    filled(rig)

    def run(*words: str) -> Any:
        return CliRunner(env=environment(rig.stores.settings)).invoke(cli, [*words])

    found = run("get", rig.table.name, "6", "--json")
    assert (found.exit_code, json.loads(found.stdout)["row"]) == (0, {"id": 6, "n": 60})
    gone = run("get", rig.table.name, "7", "--json")
    assert (gone.exit_code, json.loads(gone.stdout)["found"]) == (1, False)
    was = run("changes", rig.table.name, "--from", "1", "--pre-images", "--where", "id = 6", "--json")
    assert [(c["_change_type"], c["n"]) for c in json.loads(was.stdout)["changes"]][-2:] == [("-U", 6), ("+U", 60)]
    wrong = run("get", rig.table.name, "6", "7")
    assert wrong.exit_code == 2 and "the key is (id)" in wrong.stderr
    changed = run("changes", rig.table.name, "--from", "1", "--where", "_op = 'delete'", "--json")
    assert sorted(c["id"] for c in json.loads(changed.stdout)["changes"]) == [0, 5, 7, 99]


def test_a_key_of_any_length_is_ingested_and_found_by_the_index_of_its_segment(make_keyed: MakeKeyed):
    columns = {"id": {"type": "string", "required": True}, "n": "int"}
    rig = make_keyed(columns=columns)
    long = "k" * 5_000  # more than an entry of a B-tree takes
    values = [f'{{"id": "{key}", "n": {n}}}'.encode() for n, key in enumerate(["a", long, "b", long])]
    rig.kafka.produce(rig.topic, 0, values[:2])
    rig.ingest()  # and makes the indexes, having caught up
    rig.kafka.produce(rig.topic, 0, values[2:])
    rig.ingest()

    [segment] = rig.stores.segments.all(rig.table.row)
    with rig.stores.database.session() as connection:
        names = connection.execute(
            "SELECT indexname FROM pg_indexes WHERE tablename = %s ORDER BY 1", [segment.name]
        ).fetchall()
    assert [row["indexname"] for row in names] == [f"{segment.name}_coordinates", f"{segment.name}_key"]
    assert rig.table.get_many([long, "a", "c"]) == [{"id": long, "n": 3}, {"id": "a", "n": 0}, None]
