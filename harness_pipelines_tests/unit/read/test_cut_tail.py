"""Cuts over a decoded tail have at all times what a read has: whatever the registry learns, and the log forgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.formats.records import ELSEWHERE, decoder_name
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines.read import cut as module
from harness_pipelines.read import cut_chunks
from harness_pipelines.read.cut import Cutter
from harness_pipelines.read.cut_tail import LogEndsBelowCut
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.read.cut_servers import Book, Files, Row, rows_of
from harness_pipelines_tests.unit.read.test_tail import TOPIC, World
from harness_pipelines_tests.wire import framed, zigzag

AVRO = WrittenSchema(
    kind="AVRO",
    text='{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "s", "type": ["null", "string"]}]}',
)


class Registry:
    """It knows the schemas *there*."""

    def __init__(self) -> None:
        self.there: set[int] = set()

    def by_id(self, schema_id: int) -> WrittenSchema | None:
        return AVRO if schema_id in self.there else None

    def close(self) -> None: ...


class Tail(World):
    """A table without a buffer, and servers of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, partitions: int = 1, **spec: Any) -> None:
        super().__init__(buffer="none", partitions=partitions, **spec)
        self.now_s, self.book, self.files, self.registry = 1000.0, Book(), Files(), Registry()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.stores = SimpleNamespace(
            leases=self.rig.leases, log=self.log, schemas=self.registry, cuts=self.book, cut_files=self.files,
            buffer_reader=None, lake_reads=None, tables=SimpleNamespace(table=lambda name: self.table),
        )  # fmt: skip
        self.cutter = self.server()

    def server(self) -> Cutter:
        return Cutter(self.stores, holder="test", keep=timedelta(minutes=15), every=timedelta(0))

    def record(self, number: int, schema_id: int, *, partition: int = 0) -> None:
        self.log.append(TOPIC, partition, framed(zigzag(number) + zigzag(0), schema_id))

    def cut(self, server: Cutter | None = None) -> Cut:
        self.now_s += 1.0  # a cut is given out again for a moment
        self.book.now += timedelta(seconds=1)
        return (server or self.cutter).load(self.table).cut

    def truth(self) -> Counter[Row]:
        return rows_of(self.rows(self.plan()))

    def assert_exact(self, server: Cutter | None = None) -> Cut:
        """A cut of now has the rows of a read of now."""
        cut = self.cut(server)
        assert self.files.seen(cut) == self.truth()
        return cut

    def spec_is(self, **changes: Any) -> None:
        """Another spec is applied; the columns are the same."""
        spec = TableSpec.model_validate({**self.table.spec.model_dump(mode="json", exclude_defaults=True), **changes})
        [*before, last] = self.table.history
        made = replace(last, spec=spec.model_dump(mode="json"))
        self.table = TableRow(**{**_words(self.table), "spec": spec, "history": (*before, made)})

    def moved(self, high: int) -> None:
        """Tier has the records below *high*."""
        self.rig.ingest(self.table, {0: (0, high)})
        self.rig.move(self.table, {0: 0}, {0: high})

    @property
    def counted(self) -> int:
        return len(self.files.rows)


def _words(table: TableRow) -> dict[str, Any]:
    return {word: getattr(table, word) for word in TableRow.__dataclass_fields__}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tail]:
    return lambda **spec: Tail(monkeypatch, **spec)


@pytest.fixture
def avro(made: Callable[..., Tail]) -> Tail:
    """Five records, the third of a schema that the registry does not know yet."""
    world = made(format="avro")
    world.registry.there = {1}
    for number in range(5):
        world.record(number, 2 if number == 2 else 1)
    return world


def test_what_is_there_is_not_decoded_into_files_again(made: Callable[..., Tail]):
    world = made(partitions=3)
    world.produce(50)
    first = world.assert_exact()
    world.produce(1)
    second = world.assert_exact()
    assert {chunk.path for chunk in first.chunks} <= {chunk.path for chunk in second.chunks}
    assert sum(world.files.rows[c.path].num_rows for c in second.chunks if c not in first.chunks) == 3
    assert world.cut().sequence == second.sequence


def test_a_record_whose_schema_comes_to_the_registry_later_is_in_the_next_cut(avro: Tail):
    first = avro.assert_exact()
    assert sorted(o for _, o, *_ in avro.files.seen(first)) == [0, 1, 3, 4]
    avro.registry.there = {1, 2}
    second = avro.assert_exact()
    assert sorted(o for _, o, *_ in avro.files.seen(second)) == [0, 1, 2, 3, 4]
    assert second.bounds == first.bounds and second.snapshot_id != first.snapshot_id


def test_a_record_that_stays_without_a_schema_makes_no_chunk_again(avro: Tail):
    first = avro.assert_exact()
    assert avro.cut().sequence == first.sequence
    avro.record(5, 1)
    second = avro.assert_exact()
    assert {chunk.path for chunk in first.chunks} <= {chunk.path for chunk in second.chunks}
    assert avro.counted == 2


@pytest.mark.parametrize("known", [False, True])
def test_a_chunk_that_is_put_together_of_others_remembers_their_records_without_a_schema(avro: Tail, known: bool):
    avro.assert_exact()
    for number in range(5, 10):
        avro.record(number, 3 if number == 8 else 1)
    [joined] = avro.assert_exact().chunks
    assert joined.ranges == {0: (0, 10)}
    if known:
        avro.registry.there = {1, 3}
    avro.assert_exact()
    avro.registry.there = {1, 2, 3}
    avro.assert_exact()


def test_another_server_decodes_such_a_record_too(avro: Tail):
    avro.assert_exact()
    avro.registry.there = {1, 2}
    avro.assert_exact(avro.server())


def test_a_schema_that_the_registry_loses_takes_its_record_away_and_the_state_of_before_has_another_id(avro: Tail):
    ids = []
    for there in ({1}, {1, 2}, {1}):
        avro.registry.there = there
        ids.append(avro.cut().snapshot_id)
    assert len({*ids}) == 2, "a record that was a row stays one, as at ingest"


def test_a_decoder_that_is_changed_and_changed_back_gives_three_cuts_that_are_all_exact(made: Callable[..., Tail]):
    world = made(transform={"derive": {"s": "'1'"}})
    world.produce(4)
    cuts = [world.assert_exact()]
    for number in (2, 1):
        world.spec_is(transform={"derive": {"s": f"'{number}'"}})
        cuts.append(world.assert_exact())
    assert cuts[0].bounds == cuts[1].bounds == cuts[2].bounds
    assert len({cut.snapshot_id for cut in cuts}) == 3
    assert world.files.seen(cuts[0]) == world.files.seen(cuts[2]) != world.files.seen(cuts[1])


def test_a_cut_of_another_decoder_is_no_answer_though_it_has_all_offsets(made: Callable[..., Tail]):
    world = made(transform={"derive": {"s": "'1'"}})
    world.produce(4)
    old, other = world.table, world.server()
    world.spec_is(transform={"derive": {"s": "'2'"}})

    def faster() -> None:
        other.load(old)  # it has read the spec before the apply
        world.book.now += timedelta(seconds=1)

    world.book.before_publish = faster
    world.assert_exact()


def test_words_that_decide_no_row_make_no_chunk_again(made: Callable[..., Tail]):
    world = made()
    world.produce(4)
    first = world.assert_exact()
    world.spec_is(tier={"max_rows": 7}, freshness={"lake": "1h"}, retention={"grace": "1h"}, quarantine_mb=7)
    assert world.cut().sequence == first.sequence
    assert world.counted == 1


def test_each_word_of_a_spec_decides_rows_or_is_known_not_to():
    assert TableSpec.model_fields.keys() >= ELSEWHERE
    assert TableSpec.model_fields.keys() - ELSEWHERE == {
        "format", "value_schema", "columns", "key", "key_format", "key_schema", "delete", "unavailable_value",
        "on_error", "unknown_fields", "evolution", "transform", "contract",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"on_error": "stop"},
        {"unknown_fields": "quarantine"},
        {"columns": {"id": "int"}},
        {"transform": {"filter": "id > 1"}},
        {"contract": {"columns": {"id": {"ge": 1}}}},
    ],
)
def test_words_that_decide_rows_name_another_decoder(change: dict[str, Any]):
    plain: dict[str, Any] = {"table": "a.b", "columns": {"id": "long"}}
    one, other = (TableSpec.model_validate(words) for words in (plain, {**plain, **change}))
    assert decoder_name(one) != decoder_name(other)
    assert decoder_name(one) == decoder_name(TableSpec.model_validate({**plain, "table": "a.c", "topic": "t"}))


# -- an unclean election ------------------------------------------------------------------------------------------


def cut_off(world: Tail, *, end: int, then: int) -> None:
    """Records from *end* on are lost, and *then* others come."""
    world.log.truncate(TOPIC, 0, end)
    for _ in range(then):
        world.log.append(TOPIC, 0, b'{"id": 2}')


@pytest.mark.parametrize("then", [2, 5], ids=["to the same end", "beyond it"])
@pytest.mark.parametrize("knows", ["this server", "a server that begins"])
def test_records_that_others_replaced_are_decoded_again(made: Callable[..., Tail], then: int, knows: str):
    world = made()
    world.produce(10)
    world.assert_exact()
    cut_off(world, end=8, then=then)
    world.now_s += 11.0
    cut = world.assert_exact(world.server() if knows == "a server that begins" else None)
    assert sorted(value for _, _, value, _ in world.files.seen(cut)) == [1] * 8 + [2] * then


def test_a_leader_that_shows_while_the_tail_is_read_lets_the_log_be_compared_at_once(made: Callable[..., Tail]):
    world = made()
    world.produce(10)
    world.assert_exact()
    cut_off(world, end=8, then=5)
    world.assert_exact()  # though it was compared a moment ago


def test_what_the_log_has_lost_stays_lost_while_a_large_tail_is_decoded_again(
    made: Callable[..., Tail], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cut_chunks, "CHUNK_ROWS_MAX", 16)
    world = made()
    world.produce(160)
    world.assert_exact()
    cut_off(world, end=8, then=152)

    def slow(_: object) -> None:
        world.now_s += 50.0

    world.files.on_chunk, before = slow, world.counted
    for _ in range(3):  # the log is not compared for each of them
        monkeypatch.setattr(module, "COMPARED_EVERY_S", 11.0 if world.counted == before else 10_000.0)
        world.now_s += 11.0
        with pytest.raises(module.CutTooSlow):
            world.cut()
    world.files.on_chunk = lambda _: None
    world.assert_exact()
    assert world.counted == 2 * before, "and each of the others was decoded once"


def test_records_without_a_schema_that_the_lake_has_by_now_are_not_looked_for(avro: Tail):
    """The log may not have them any more: they are in quarantine."""
    avro.assert_exact()
    avro.moved(4)
    avro.log.delete_records(TOPIC, 0, 4)
    avro.record(5, 1)
    avro.assert_exact()


def test_a_new_leader_after_a_clean_election_starts_no_chunk_again(made: Callable[..., Tail]):
    world = made()
    world.produce(10)
    first = world.assert_exact()
    cut_off(world, end=10, then=2)
    second = world.assert_exact()
    assert {chunk.path for chunk in first.chunks} <= {chunk.path for chunk in second.chunks}


def test_a_log_that_ends_below_a_cut_in_use_is_named_and_served_again_once_that_cut_is_over(made: Callable[..., Tail]):
    world = made()
    world.produce(10)
    world.cut()
    cut_off(world, end=8, then=0)
    with pytest.raises(LogEndsBelowCut, match="ends at offset 8.*below 10.*nothing was published"):
        world.cut()
    world.book.end()
    world.assert_exact()


def test_a_large_tail_is_decoded_in_several_attempts_and_no_record_twice(
    made: Callable[..., Tail], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cut_chunks, "CHUNK_ROWS_MAX", 16)
    world = made(partitions=2)
    world.produce(80)

    def slow(_: object) -> None:
        world.now_s += 50.0

    world.files.on_chunk = slow
    for _ in range(3):
        with pytest.raises(module.CutTooSlow, match="goes on from what was written"):
            world.cut()
    world.files.on_chunk = lambda _: None
    world.assert_exact()
    assert sum(rows.num_rows for rows in world.files.rows.values()) == 160
