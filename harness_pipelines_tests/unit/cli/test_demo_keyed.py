"""The keyed demo: its changelog is lawful, and its judges find what they promise to find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from harness_pipelines.demo.changelog import DELETES, INSERTS, STATUSES, OrderEvent, changelog, ends_of
from harness_pipelines.demo.final_state import differences, replay
from harness_pipelines.demo.orders import COLUMNS, EVENT, KEY, PRICE, STATUS, Orders, changed, partition_of
from harness_pipelines.demo.scenario import PARTITIONS, Log
from harness_pipelines.demo.truth import Truth, split
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.arrow import arrow_schema

RECORDS = 2_000
ORDERS = Orders()


def made(records: int = RECORDS) -> Log:
    """A log over orders that are easy to tell apart; the file is not written."""
    lives = changelog(records)
    base = [
        {
            KEY: i * 4 + 1,
            "o_custkey": i % 7,
            STATUS: "F",
            PRICE: Decimal(1_000_00 + i) / 100,
            "o_orderdate": date.fromordinal(730_000 + i % 900),
            "o_orderpriority": '5-"LOW"',
            "o_clerk": f"Clerk \\{i}",
            "o_shippriority": 0,
            "o_comment": "it's",
        }
        for i in range(int(lives.orders.max()) + 1)
    ]
    return changed(pa.Table.from_pylist(base, schema=arrow_schema(ORDERS.spec.columns)), lives, file=Path())


@pytest.fixture(scope="module")
def log() -> Log:
    return made()


@pytest.fixture(scope="module")
def truth(log) -> Truth:
    """All acknowledged; offset 5 of each partition is a gap."""
    found = Truth.of(log, ORDERS.checked)
    for partition in found.partitions.values():
        for k in range(len(partition.offsets)):
            partition.take(k + (k >= 5), at=float(k))
    return found


def fold(log: Log, below: Mapping[int, int]) -> dict[int, tuple[int, int, Decimal]]:
    """Partition, offset and price of each row, by key: what the bytes that were sent say, in a dictionary."""
    found: dict[int, tuple[int, int, Decimal]] = {}
    sent: Counter[int] = Counter()
    for partition, (key, value) in zip(log.partitions.tolist(), ORDERS.records(log.rows), strict=True):
        offset = sent[partition] + (sent[partition] >= 5)
        sent[partition] += 1
        if offset >= below[partition]:
            continue
        row = None if value is None else json.loads(value, parse_float=Decimal)
        found.pop(int(key or b""), None)
        if row is not None and row["op"] != "d":
            found[row[KEY]] = (partition, offset, row[PRICE])
    return found


def read_below(log: Log, below: Mapping[int, int]) -> pa.Table:
    rows = [(key, *row) for key, row in fold(log, below).items()]
    keys, partitions, offsets, prices = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            KEY: pa.array(keys, pa.int64()),
            PRICE: pa.array(prices, pa.decimal128(15, 2)),
            "_kafka_partition": pa.array(partitions, pa.int32()),
            "_kafka_offset": pa.array(offsets, pa.int64()),
        }
    )


CUT = {0: 300, 1: 0, 2: 41, 3: 10_000}

# -- the changelog ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [1, 2, 13, 1_000])
def test_a_changelog_has_just_so_many_records_and_is_the_same_each_time(records):
    one, other = changelog(records), changelog(records)

    assert len(one) == records
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)
    assert sorted(set(one.orders.tolist())) == list(range(one.orders.max() + 1))


def test_each_order_lives_by_the_rules():
    lives = changelog(20_000)
    state: dict[int, str] = {}
    for order, code, status in zip(lives.orders.tolist(), lives.events.tolist(), lives.statuses.tolist(), strict=True):
        event, before = OrderEvent(code), state.get(order)
        allowed = {
            OrderEvent.INSERTED: before is None,
            OrderEvent.INSERTED_AGAIN: before == "deleted",
            OrderEvent.PENDING: before == "O",
            OrderEvent.FULFILLED: before in {"O", "P"},
        }
        assert allowed.get(event, before in {"O", "P", "F"}), f"order {order}: {event.name} after {before}"
        assert event in DELETES or status == STATUSES.get(event, before)
        state[order] = "deleted" if event in DELETES else status


def test_a_changelog_has_everything_in_it():
    lives = changelog(20_000)
    events = Counter(OrderEvent(code) for code in lives.events.tolist())
    versions = np.bincount(lives.orders)

    assert set(events) == set(OrderEvent)
    assert all(count > 50 for count in events.values()), events
    assert versions.max() > 100 * np.median(versions), "some keys are hot"


def test_some_orders_are_corrected_long_after_they_were_new():
    lives = changelog(20_000)
    born = np.unique(lives.orders, return_index=True)[1]
    corrected = lives.events == OrderEvent.CORRECTED
    ages = (np.arange(len(lives)) - born[lives.orders])[corrected]

    late = set(lives.orders[corrected][ages > len(lives) / 2].tolist())
    assert len(late) > 200, "the corrections of the hot ones alone make 130"


def test_prices_are_corrected_and_kept_until_the_next_correction(log):
    prices = dict.fromkeys(log.rows.column(KEY).to_pylist(), None)
    corrected = 0
    for row in log.rows.select([KEY, PRICE, EVENT]).to_pylist():
        event, before = OrderEvent[row[EVENT]], prices[row[KEY]]
        if event not in INSERTS and event is not OrderEvent.CORRECTED:
            assert row[PRICE] == before, row
        corrected += event is OrderEvent.CORRECTED and row[PRICE] != before
        prices[row[KEY]] = row[PRICE]
    assert corrected > 100


def test_the_end_of_a_row_is_the_next_record_of_its_key():
    keys = np.array([7, 8, 7, 7, 9, 8, 9])
    deletes = np.array([False, False, True, False, False, True, False])

    assert ends_of(keys, deletes).tolist() == [2, 5, 2, 7, 6, 5, 7]


def test_all_records_of_a_key_go_to_one_partition_and_all_partitions_are_used(log):
    homes: dict[int, set[int]] = {}
    for key, partition in zip(log.rows.column(KEY).to_pylist(), log.partitions.tolist(), strict=True):
        homes.setdefault(key, set()).add(partition)

    assert all(len(found) == 1 for found in homes.values())
    assert Counter(partition_of(np.arange(10_000)).tolist()).keys() == set(range(PARTITIONS))
    assert min(Counter(partition_of(np.arange(10_000)).tolist()).values()) > 2_000


def test_the_codec_reads_what_the_producer_writes(log):
    records = ORDERS.records(log.rows)
    decoded = RecordCodec(ORDERS.spec).decode([value for _, value in records], [key for key, _ in records])
    deleted = np.isin(log.rows.column(EVENT).to_numpy(zero_copy_only=False).astype(str), [e.name for e in DELETES])
    rows = decoded.rows.select(list(COLUMNS))

    assert decoded.refused == []
    assert (decoded.rows.column("_op").to_numpy(zero_copy_only=False) == "delete").tolist() == deleted.tolist()
    assert rows.filter(pa.array(~deleted)).to_pylist() == log.rows.select(list(COLUMNS)).filter(~deleted).to_pylist()
    assert rows.column(KEY).equals(log.rows.column(KEY).cast(pa.int64()))
    assert {value is None for _, value in records} == {True, False}


# -- reads while data moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_read_that_is_exactly_what_the_records_below_its_bounds_leave_has_no_faults(log, truth, seed):
    chosen = np.random.default_rng(seed).integers(0, len(log) // PARTITIONS, PARTITIONS)
    below = dict(enumerate(chosen.tolist()))

    assert truth.faults(below, split(read_below(log, below), ORDERS.checked)) == []


def test_the_number_of_live_rows_is_that_of_the_fold(log, truth):
    assert truth.live == len(fold(log, dict.fromkeys(range(PARTITIONS), len(log))))


def test_an_older_version_of_a_key_is_found(log, truth):
    rows, older = read_below(log, CUT), read_below(log, {**CUT, 0: 299})
    kept = older.filter(pa.array(older.column("_kafka_partition").to_numpy() == 0))
    stale = pa.concat_tables([kept, rows.filter(pa.array(rows.column("_kafka_partition").to_numpy() != 0))])

    [fault] = truth.faults(CUT, split(stale, ORDERS.checked))

    assert fault.startswith("partition 0 below 300: 299 records were sent, which leave ")


def test_a_deleted_row_that_is_still_there_is_found(log, truth):
    number = int(np.flatnonzero(np.isin(log.rows.column(EVENT).to_pylist(), ["DELETED", "BURIED"]))[0])
    p, place = int(log.partitions[number]), int(log.places[number])
    offset = int(truth.partitions[p].offsets[place])
    cut = {**dict.fromkeys(range(PARTITIONS), 0), p: offset + 1}

    before = read_below(log, {**cut, p: offset})
    [fault] = truth.faults(cut, split(before, ORDERS.checked))

    assert f"which leave {before.num_rows - 1} rows, {before.num_rows} rows were read" in fault


def test_of_as_many_rows_the_one_that_is_missing_is_named(log, truth):
    rows = read_below(log, CUT)
    at = rows.schema.get_field_index("_kafka_offset")
    p, offset = rows.column("_kafka_partition")[0].as_py(), rows.column("_kafka_offset")[0].as_py()
    other = rows.set_column(at, "_kafka_offset", pa.array([5, *rows.column(at).to_pylist()[1:]], pa.int64()))

    [fault] = truth.faults(CUT, split(other, ORDERS.checked))

    assert fault.startswith(f"partition {p} below {CUT[p]}") and fault.endswith(f", not that at {offset}")


def test_a_price_of_another_version_is_found(log, truth):
    rows = read_below(log, CUT)
    at = rows.schema.get_field_index(PRICE)
    prices = [Decimal("0.01"), *rows.column(at).to_pylist()[1:]]

    [fault] = truth.faults(
        CUT, split(rows.set_column(at, PRICE, pa.array(prices, pa.decimal128(15, 2))), ORDERS.checked)
    )

    assert f"sum of {PRICE} is" in fault


# -- the final state ----------------------------------------------------------------------------------------


def state(*rows: tuple[int, str | None, int]) -> pa.Table:
    """Rows of ``(key, status, offset)``, all of one partition."""
    keys, statuses, offsets = zip(*rows, strict=True)
    return pa.table(
        {
            KEY: pa.array(keys, pa.int64()),
            STATUS: pa.array(statuses, pa.string()),
            "_kafka_partition": pa.array([0] * len(keys), pa.int32()),
            "_kafka_offset": pa.array(offsets, pa.int64()),
        }
    )


EXPECTED = [(1, "O", 10), (2, "P", 11), (3, "F", 12)]


def said(*rows: tuple[int, str | None, int]) -> tuple[str, ...]:
    return differences(state(*EXPECTED), state(*rows), key=KEY).said("Arrow", KEY)


def test_the_replay_keeps_the_newest_put_of_each_key():
    assert replay([1, 2, 1, 3, 2, 3, 3], [False, False, False, False, True, True, False]) == [2, 6]


def test_the_replayed_log_is_what_the_truth_has(log, truth):
    deletes = np.isin(log.rows.column(EVENT).to_pylist(), ["DELETED", "BURIED"])
    live = replay(log.rows.column(KEY).to_pylist(), deletes.tolist())
    found = truth.coordinates(log, live)
    folded = fold(log, dict.fromkeys(range(PARTITIONS), len(log)))

    assert sorted(
        zip(*(found[name].tolist() for name in ("_kafka_partition", "_kafka_offset")), strict=True)
    ) == sorted((partition, offset) for partition, offset, _ in folded.values())


def test_equal_states_do_not_differ_in_whatever_order():
    assert said(*reversed(EXPECTED)) == ()


def test_rows_that_are_missing_doubled_or_strange_are_named_by_their_keys():
    assert said(*EXPECTED[1:]) == (f"Arrow: 1 rows are missing: {KEY} 1",)
    assert said(*EXPECTED, EXPECTED[2]) == (f"Arrow: 1 rows are too many: their key is there already: {KEY} 3",)
    assert said(*EXPECTED, (9, "O", 13)) == (f"Arrow: 1 rows are of a key that is deleted or was never sent: {KEY} 9",)


def test_a_row_of_another_version_is_named_and_its_columns_are_not():
    assert said((1, "F", 7), *EXPECTED[1:]) == (f"Arrow: 1 rows are not the newest version of their key: {KEY} 1",)


def test_a_changed_value_and_a_lost_one_are_named_by_column():
    assert said((1, "F", 10), (2, None, 11), EXPECTED[2]) == (f"Arrow: 2 rows have another {STATUS}: {KEY} 1, 2",)
