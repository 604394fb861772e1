"""One record never holds a stage, by whatever route it comes: threads, Spark tasks, or straight to the lake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.show.rows import json_rows
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines_tests.raw_producer import produce_with_header
from harness_pipelines_tests.rig import TableRig, good

MakeRig = Callable[..., TableRig]
HEADERS = "list<struct<key: string, value: binary>>"
NO_TIMES = (1_700_000_000_000_000, 253_402_300_800_000)  #: microseconds for milliseconds; the year 10000
OVERFLOWS = (1_700_000_000_000_000_000, 2**63 - 1)
ODD: Mapping[bytes, str | None] = {
    b'{"id":"x"}': "wrong_type",
    b"\xef\xbb\xbf{}": "malformed",
    b'{"id":101,"s":"\\ud800"}': "malformed",
    b'{"id":102,"n":1e400}': "out_of_range",
    b"\xff\xfe": "malformed",
    b'{"id":103,"s":"a\\u0000b"}': "out_of_range",
    b"[" * 5000: "malformed",
    b'{"id":104}': None,
    b"": "null_value",
}  #: value -> why it is no row; None: it is one


def taken(rig: TableRig, route: str) -> None:
    """Take all records of the topic by *route*."""
    if route == "threads":
        rig.ingest()
    elif route == "spark":
        ingest_on_spark(rig.stores, rig.table.row, rig.claim(Stage.INGEST))
    else:
        rig.tier()


def verdicts(rig: TableRig) -> tuple[list[dict[str, Any]], dict[tuple[int, int], tuple[str, str]]]:
    """The rows with their times, and why the others are none."""
    rows = rig.table.read(columns=["id", "_kafka_offset", "_kafka_timestamp"], tail=True)
    refused = {at: (reason, detail) for at, (reason, detail, _) in rig.quarantine().items()}
    return sorted(json_rows(rows), key=lambda row: row["_kafka_offset"]), refused


@pytest.mark.parametrize("route", ["threads", "spark", "none"])
def test_odd_records_cost_themselves_alone_by_every_route(make_rig: MakeRig, route: str) -> None:
    columns = {
        "id": {"type": "long", "required": True},
        "n": "int",
        "s": "string",
        "h": {"type": HEADERS, "from": "headers"},
    }
    rig = make_rig(partitions=1, columns=columns, buffer="none" if route == "none" else "postgres",
                   topic_config={"message.timestamp.after.max.ms": str(2**63 - 1)})  # fmt: skip
    for value in ODD:
        rig.kafka.produce(rig.topic, 0, [value])
    for ms in NO_TIMES:
        rig.kafka.produce(rig.topic, 0, [good(ms % 1000)], timestamp_ms=ms)
    produce_with_header(rig.stores.settings, rig.topic, good(7), name=b"\xff\xfe")
    rig.kafka.produce(rig.topic, 0, [good(8)], timestamp_ms=1_700_000_000_123, headers=[("a", b"1")])
    in_the_tail, _ = verdicts(rig)

    taken(rig, route)

    rows, refused = verdicts(rig)
    assert rows == in_the_tail
    assert [row["id"] for row in rows] == [104, *(ms % 1000 for ms in NO_TIMES), 8]
    assert [row["_kafka_timestamp"] for row in rows][1:] == [None, None, "2023-11-14T22:13:20.123000+00:00"]
    whys = [why for why in ODD.values() if why is not None]
    assert [refused[at][0] for at in sorted(refused)] == [*whys, "malformed"]
    assert refused[0, len(ODD) + len(NO_TIMES)][1] == "`h`: the name of a header is not UTF-8"


@pytest.mark.parametrize("route", ["threads", "spark", "none"])
def test_a_time_that_no_64_bits_of_microseconds_hold_is_none(make_rig: MakeRig, route: str) -> None:
    rig = make_rig(partitions=1, buffer="none" if route == "none" else "postgres",
                   topic_config={"message.timestamp.after.max.ms": str(2**63 - 1)})  # fmt: skip
    for ms in OVERFLOWS:
        rig.kafka.produce(rig.topic, 0, rig.values(1), timestamp_ms=ms)
    [at] = rig.kafka.produce(rig.topic, 0, [b"{"], timestamp_ms=OVERFLOWS[0], headers=[("a", b"1")])
    rig._misfits.add((0, at))
    rig.kafka.produce(rig.topic, 0, rig.values(1), timestamp_ms=1_700_000_000_123)
    taken(rig, route)
    times = [row["_kafka_timestamp"] for row in verdicts(rig)[0]]
    assert times == [None, None, "2023-11-14T22:13:20.123000+00:00"]
    rig.assert_exact()


def test_a_header_that_no_column_wants_is_no_matter(make_rig: MakeRig) -> None:
    rig = make_rig(partitions=1)
    produce_with_header(rig.stores.settings, rig.topic, good(3), name=b"\xff\xfe")
    rig.ingest()
    assert [row["id"] for row in verdicts(rig)[0]] == [3]


@pytest.mark.parametrize("route", ["threads", "spark"])
def test_a_row_larger_than_a_page_is_a_row(make_rig: MakeRig, route: str) -> None:
    columns = {"id": {"type": "long", "required": True}, **{f"c{i}": "long" for i in range(1_100)}}
    rig = make_rig(partitions=1, columns=columns)
    full = b'{"id":2,%b}' % b",".join(b'"c%d":%d' % (i, 2**62) for i in range(1_100))
    rig.kafka.produce(rig.topic, 0, [b'{"id":1}', full, b'{"id":3}'])
    taken(rig, route)
    rows, refused = verdicts(rig)
    assert refused == {}
    assert [row["id"] for row in rows] == [1, 2, 3]
    [found] = rig.table.read(columns=["c0", "c1099"], where="id = 2").to_pylist()
    assert found == {"c0": 2**62, "c1099": 2**62}
