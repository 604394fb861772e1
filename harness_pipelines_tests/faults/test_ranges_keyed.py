"""A range of a keyed table is decoded again: the changelog has it at its offsets, the batch view what that folds to.

The key is a time, which a decoder reads as milliseconds (the table's own) or as microseconds: with it records change
their keys, and some of them meet those of others.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from harness_pipelines import faults
from harness_pipelines.protocol.changes.corrections import Kind, ReplayRefused
from harness_pipelines.protocol.changes.reverts import RevertWaits
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.otree.recall import ask
from harness_pipelines.stages.otree.recall import run as run_recall
from harness_pipelines.stages.replay.ranges import RangeReplayed
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_ranges import ranged
from harness_pipelines_tests.faults.test_replay import settled, states, whole
from harness_pipelines_tests.rig import TableRig

UNITS = {"epoch_ms": 1000, "epoch_us": 1}
VALUES = (1, 1_000, 1_000_000)  #: of the key's field; 1 ms is 1,000 us
State = dict[int, int]  #: key in microseconds -> n


def columns(unit: str = "epoch_ms") -> dict[str, Any]:
    return {"id": {"type": "timestamptz", "required": True, "from": unit}, "n": "int"}


def decoder(rig: TableRig, unit: str = "epoch_us", **more: Any) -> TableSpec:
    told = {"table": rig.name, "topic": rig.topic, "columns": columns(unit), "key": ["id"], "delete": DELETE}
    return TableSpec.model_validate({**told, "views": rig.table.spec.views, "layout": {"columns": ["n"]}, **more})


DELETE = {"field": "op", "values": ["d"]}


def state(rig: TableRig, *, at: int | None = None) -> State:
    found = rig.harness.table(rig.name).read(columns=["id", "n"], at=at).to_pylist()
    rows = [(int(row["id"].timestamp() * 1e6), row["n"]) for row in found]
    assert len(rows) == len(dict(rows)), "a key has one row"
    return dict(rows)


class Log:
    """What was produced to partition 0, and what it folds to."""

    def __init__(self, rig: TableRig) -> None:
        self.rig = rig
        self.records: list[tuple[int, int | None, bool]] = []  #: the key's field, n (None: a delete), refused at first

    def send(self, key: int, n: int | None, *, odd: bool = False) -> None:
        value = b'{"id":%d,%s%s}' % (key, b'"op":"d"' if n is None else b'"n":%d' % n, b',"more":1' if odd else b"")
        self.rig.kafka.produce(self.rig.topic, 0, [value])
        self.records.append((key, n, odd))

    def folded(self, units: list[str | None]) -> State:
        """*units*: by which each record is read; None: it is no row."""
        found: State = {}
        for (key, n, _), unit in zip(self.records, units, strict=True):
            if unit is not None:
                found.pop(key * UNITS[unit], None)
                if n is not None:
                    found[key * UNITS[unit]] = n
        return found

    def at_first(self) -> list[str | None]:
        return [None if odd else "epoch_ms" for _, _, odd in self.records]


def made(make_rig: MakeRig, **more: Any) -> Log:
    told = {"views": "both", "layout": {"columns": ["n"]}, "unknown_fields": "quarantine", "delete": DELETE}
    return Log(make_rig(columns=columns(), key=["id"], **{**told, **more}))


def read_so(log: Log, low: int, high: int, unit: str = "epoch_us") -> RangeReplayed:
    return ranged(log.rig, low, high, decoder=decoder(log.rig, unit))


@pytest.mark.parametrize("views", ["both", "stream"])
def test_a_key_that_changes_leaves_its_place_to_the_version_before(make_rig: MakeRig, views: str):
    log = made(make_rig, views=views)
    log.send(1_000, 10)
    log.send(1_000, 20)  # decoded again it is 1 ms, which has a row
    log.send(1, 30)
    log.send(1_000_000, 40)
    settled(log.rig)
    before = log.rig.stores.tables.head(log.rig.table.row).version
    assert state(log.rig) == {1_000_000: 20, 1_000: 30, 1_000_000_000: 40}

    assert read_so(log, 1, 2).changes == {Kind.REPLACED: 1}
    assert state(log.rig) == {1_000_000: 10, 1_000: 30, 1_000_000_000: 40}, "the older version is back, 30 is newer"
    whole(log.rig)
    assert read_so(log, 3, 4).changes == {Kind.REPLACED: 1}
    assert state(log.rig) == {1_000_000: 40, 1_000: 30}, "the newer version takes the place of the older one"
    assert state(log.rig, at=before) == {1_000_000: 20, 1_000: 30, 1_000_000_000: 40}
    whole(log.rig)
    revert_table(log.rig.stores, log.rig.table.row, to=before)
    assert state(log.rig) == {1_000_000: 20, 1_000: 30, 1_000_000_000: 40}
    whole(log.rig)


def test_a_delete_that_becomes_one_of_another_key(make_rig: MakeRig):
    log = made(make_rig)
    log.send(1_000, 10)
    log.send(1, 20)
    log.send(1_000, None)  # decoded again it deletes 1 ms
    settled(log.rig)
    assert state(log.rig) == {1_000: 20}
    assert read_so(log, 2, 3).changes == {Kind.REPLACED: 1}
    assert state(log.rig) == {1_000_000: 10}
    whole(log.rig)


def test_a_version_that_does_not_fit_any_more_gives_way_to_the_one_before(make_rig: MakeRig):
    log = made(make_rig)
    log.send(1, 10)
    log.send(1, 20)
    log.send(1_000, 20)
    settled(log.rig)
    strict = decoder(log.rig, "epoch_ms", contract={"columns": {"n": {"lt": 20}}})
    assert ranged(log.rig, 0, 3, decoder=strict).changes == {Kind.REMOVED: 2}
    assert state(log.rig) == {1_000: 10}
    assert states(log.rig) == {"held": 2}
    whole(log.rig)


@pytest.mark.long
def test_a_newer_version_above_the_batch_view_hides_it(make_rig: MakeRig):
    log = made(make_rig)
    log.send(1, 10)
    settled(log.rig)
    log.send(1, 20)
    log.rig.ingest()
    strict = decoder(log.rig, "epoch_ms", contract={"columns": {"n": {"gt": 10}}})
    assert ranged(log.rig, 0, 1, decoder=strict).changes == {Kind.REMOVED: 1}
    assert state(log.rig) == {1_000: 20}
    settled(log.rig)
    assert state(log.rig) == {1_000: 20}
    whole(log.rig)


def test_where_rows_are_recalled_nothing_is_replaced(make_rig: MakeRig):
    log = made(make_rig)
    log.send(1, 10)
    settled(log.rig)
    row = log.rig.table.row
    list(run_recall(log.rig.stores, row, ask(log.rig.stores, row, OverlayRequest.RECALL, where="n = 10")))
    with pytest.raises(ReplayRefused, match="--release"):
        read_so(log, 0, 1)
    assert state(log.rig) == {1_000: 10}


def test_a_key_that_would_be_in_two_partitions_is_named_and_nothing_replaced(make_rig: MakeRig):
    log = made(make_rig)
    log.send(1_000, 10)
    log.rig.kafka.produce(log.rig.topic, 1, [b'{"id":1,"n":20}'])
    settled(log.rig)
    with pytest.raises(KeyInTwoPartitions, match="partition"):
        read_so(log, 0, 1)
    assert state(log.rig) == {1_000_000: 10, 1_000: 20}
    whole(log.rig)


@pytest.mark.long
@pytest.mark.parametrize("_example", range(3))  # the processes of one run must know each test by the same name
def test_after_any_replays_each_version_is_what_its_records_fold_to(make_rig: MakeRig, _example: int):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    log = made(make_rig)
    rig, known = log.rig, dict[int, State]()
    units: dict[int, list[str | None]] = {}  #: by version, how its records are read; later ones as at first
    now: list[str | None] = []
    for _ in range(12):
        for number in range(chosen.randrange(6)):
            gone = chosen.random() < 0.3
            log.send(chosen.choice(VALUES), None if gone else 100 + len(log.records), odd=number == 3 and not gone)
        settled(rig)
        now += log.at_first()[len(now) :]
        low = chosen.randrange(len(now) + 1)
        high = chosen.randrange(low, len(now) + 1)
        act = chosen.choice(["replay", "replay", "replay", "crash", "revert", "relayout"])
        if act in ("replay", "crash") and low < high:
            unit = chosen.choice(list(UNITS))
            if act == "crash":
                faults.arm_from({"HARNESS_FAULT": f"replay.{chosen.choice(['before_lock', 'in_transaction'])}=raise"})
            try:
                read_so(log, low, high, unit)
                now = [*now[:low], *[unit] * (high - low), *now[high:]]
            except faults.FaultInjected:
                assert act == "crash"
            finally:
                faults.disarm()
        elif act == "revert" and units:
            to = chosen.choice(list(units))
            with suppress(RevertWaits):  # by name; nothing has changed
                revert_table(rig.stores, rig.table.row, to=to)
                now = units[to] + log.at_first()[len(units[to]) :]
        elif act == "relayout" and state(rig):
            rig.relayout()
        version = rig.stores.tables.head(rig.table.row).version
        units[version], known[version] = list(now), log.folded(now)
        assert state(rig) == known[version], act
    for version, expected in known.items():
        assert state(rig, at=version) == expected
    whole(rig)
