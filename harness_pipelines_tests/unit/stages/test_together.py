"""Units of many tables share a transaction where they can, and each meets its own error."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from harness_pipelines.errors import DatabaseAway, HarnessError, OutcomeUnknown
from harness_pipelines.ports.decoded import DecodedRange
from harness_pipelines.ports.errors import KafkaPropertyRefused, KafkaUnreachable, TopicRecreated
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.digest import lake_digests, total_digest
from harness_pipelines.stages.ingest.ingest import Ready, Steps, alone
from harness_pipelines.stages.ingest.together import RECORDS_MAX, together


class Buffer:
    """Notes what is committed together, and what alone."""

    def __init__(self) -> None:
        self.done: list[list[str]] = []
        self.digests: dict[str, int | None] = {}  #: of the last commit of each table
        self.fails: BaseException | None = None  #: a transaction of several tables


class Writer:
    def __init__(self, buffer: Buffer, name: str) -> None:
        self._buffer, self.name = buffer, name
        self.refused: HarnessError | None = None  #: when it is committed by itself

    def commit_all(self, units: Sequence[Any], *, confirm: Any) -> list[int]:
        if self._buffer.fails is not None:
            raise self._buffer.fails
        confirm()
        self._buffer.done.append([unit.writer.name for unit in units])
        self._buffer.digests |= {unit.writer.name: unit.ranges[0].digest for unit in units}
        return [unit.ranges[0].rows.num_rows for unit in units]

    def commit(self, _segment: Any, ranges: Sequence[DecodedRange], *, confirm: Any) -> int:
        confirm()
        if self.refused is not None:
            raise self.refused
        self._buffer.done.append([self.name])
        self._buffer.digests[self.name] = ranges[0].digest
        return len(ranges[0].rows)


class Log:
    """Knows each topic by its name, but for those that have trouble."""

    def __init__(self) -> None:
        self.trouble: dict[str, TopicIdentity | HarnessError] = {}
        self.asked: list[set[str]] = []

    def identities(self, topics: Any) -> dict[str, Any]:
        self.asked.append(set(topics))
        return {topic: self.trouble.get(topic, _identity(topic)) for topic in topics}


class Table:
    """One table with some records to take."""

    def __init__(self, buffer: Buffer, name: str, rows: int = 3) -> None:
        self.name, self.rows = name, rows
        self.writer = Writer(buffer, name)
        self.error: HarnessError | None = None
        self.refused: list[Any] = []

    def ready(self) -> Ready:
        ranges = DecodedRange(
            partition=0,
            low=0,
            high=self.rows,
            rows=pa.table({"id": list(range(self.rows))}),
            refused=self.refused,
            leader_epoch=None,
        )
        table: Any = SimpleNamespace(
            name=self.name,
            identity=_identity(self.name),
            spec=SimpleNamespace(topic=self.name, key=()),
            schema_version=1,
            first_names={},
            first_layouts={},
        )
        segment: Any = SimpleNamespace(current=lambda: "seg", renew=lambda: "seg")
        writer: Any = self.writer
        return Ready(table=table, writer=writer, segment=segment, ranges=[ranges], ask=lambda: lambda: table.identity)

    def steps(self) -> Steps[int]:
        """The number of rows; -1: it met an error."""
        try:
            return (yield self.ready())
        except HarnessError as error:
            self.error = error
            return -1


def _identity(topic: str, number: str = "1") -> TopicIdentity:
    return TopicIdentity(cluster_id="c", topic=topic, topic_id=f"{topic}-{number}", partitions=(0,))


@pytest.fixture
def buffer() -> Buffer:
    return Buffer()


@pytest.fixture
def log() -> Log:
    return Log()


def take(log: Any, *tables: Table) -> list[int]:
    return together([table.steps() for table in tables], log)


def test_small_units_share_a_transaction_and_one_question_for_their_topics(buffer: Buffer, log: Log):
    tables = [Table(buffer, name, rows) for name, rows in (("a", 3), ("b", 1), ("c", 2))]
    assert take(log, *tables) == [3, 1, 2]
    assert buffer.done == [["a", "b", "c"]]
    assert log.asked == [{"a", "b", "c"}]


def test_the_digest_of_a_unit_does_not_depend_on_those_beside_it(buffer: Buffer, log: Log):
    tables = [Table(buffer, name, rows) for name, rows in (("a", 3), ("b", 1), ("c", 2))]
    take(log, *tables)
    together_, buffer.digests = buffer.digests, {}
    for table in tables:
        take(log, table)
    assert buffer.digests == together_
    expected = lake_digests(pa.table({"id": [0, 1, 2]}), schema_version=1)
    assert together_["a"] == total_digest(expected)


@pytest.mark.parametrize("error", [KafkaPropertyRefused("no such file"), IndexError("a defect")])
def test_an_error_of_what_is_asked_for_all_ends_no_worker(
    buffer: Buffer, log: Log, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def identities(_topics: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(log, "identities", identities)
    with capture_logs() as logged:
        assert take(log, Table(buffer, "a"), Table(buffer, "b")) == [3, 3]
    assert buffer.done == [["a"], ["b"]]
    [line] = logged
    assert line["log_level"] == ("info" if isinstance(error, HarnessError) else "error"), "a defect is not passed over"


def test_what_is_large_or_refuses_records_comes_by_itself(buffer: Buffer, log: Log):
    large, refusing = Table(buffer, "large", RECORDS_MAX + 1), Table(buffer, "refusing")
    refusing.refused = ["a record"]
    assert take(log, large, Table(buffer, "a"), refusing, Table(buffer, "b")) == [RECORDS_MAX + 1, 3, 3, 3]
    assert buffer.done == [["a", "b"], ["large"], ["refusing"]]


def test_one_small_unit_is_committed_as_it_would_be_alone(buffer: Buffer, log: Log):
    assert take(log, Table(buffer, "a")) == [alone(Table(buffer, "b").steps())] == [3]
    assert buffer.done == [["a"], ["b"]]
    assert not log.asked


def test_where_the_transaction_fails_the_sick_one_alone_has_an_error(buffer: Buffer, log: Log):
    sick, well = Table(buffer, "sick"), Table(buffer, "well")
    buffer.fails = sick.writer.refused = HarnessError("its claim is gone")
    assert take(log, sick, well) == [-1, 3]
    assert (str(sick.error), well.error) == ("its claim is gone", None)
    assert buffer.done == [["well"]]


@pytest.mark.parametrize("lost", [OutcomeUnknown("the answer was lost"), DatabaseAway("it is away")])
def test_of_a_lost_answer_or_a_lost_database_all_hear_at_once(buffer: Buffer, log: Log, lost: HarnessError):
    tables = [Table(buffer, "a"), Table(buffer, "b")]
    buffer.fails = lost
    assert take(log, *tables) == [-1, -1]
    assert [type(table.error) for table in tables] == [type(lost)] * 2
    assert not buffer.done, "they are not written again before the ledger was asked"


def test_a_topic_that_is_another_one_now_is_looked_at_alone(buffer: Buffer, log: Log):
    other, a, b = (Table(buffer, name) for name in ("other", "a", "b"))
    log.trouble["other"] = _identity("other", "2")
    other.writer.refused = TopicRecreated("other", expected_id="other-1", found_id="other-2")
    assert take(log, other, a, b) == [-1, 3, 3]
    assert buffer.done == [["a", "b"]]
    assert isinstance(other.error, TopicRecreated)


def test_a_cluster_that_is_away_is_waited_for_once(buffer: Buffer, log: Log):
    tables = [Table(buffer, name) for name in ("a", "b")]
    log.trouble = {table.name: KafkaUnreachable("k:9092", waited_s=1.0, doing="describing") for table in tables}
    assert take(log, *tables) == [-1, -1]
    assert not buffer.done


def test_what_takes_long_comes_after_the_others(buffer: Buffer, log: Log):
    slow, order = Table(buffer, "slow"), []

    def slowly() -> Steps[int]:
        yield None
        order.extend(buffer.done)
        return (yield slow.ready())

    tables = [Table(buffer, "a"), Table(buffer, "b")]
    assert together([slowly(), *(table.steps() for table in tables)], log) == [3, 3, 3]  # type: ignore[arg-type]
    assert order == [["a", "b"]]


def test_a_defect_ends_the_process_as_it_would_alone(buffer: Buffer, log: Log):
    class Killed(BaseException):
        pass

    buffer.fails = Killed()
    with pytest.raises(Killed):
        take(log, Table(buffer, "a"), Table(buffer, "b"))
