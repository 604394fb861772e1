"""What shows many tables asks the ledger and the log once for all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.cli.main import cli
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Watermark
from harness_pipelines.serve.page import log_ends
from harness_pipelines.serve.page.log_ends import LogEnds
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.memory.log import MemoryLog
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import environment

RECORDS = 10  #: of each partition


class CountedLog(MemoryLog):
    """It notes which topics each question was about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[set[str]] = []
        self.alone: list[str] = []

    def watermarks_of(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, Watermark] | HarnessError]:
        self.asked.append(set(wanted))
        found: dict[str, dict[int, Watermark] | HarnessError] = {}
        for topic, partitions in wanted.items():
            try:
                found[topic] = MemoryLog.watermarks(self, topic, partitions)
            except HarnessError as error:
                found[topic] = error
        return found

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]:
        self.alone.append(topic)
        return super().watermarks(topic, partitions)


@pytest.fixture
def settings(real: RealRig, tmp_path: Path) -> Settings:
    warehouse = real.lake.warehouse  # type: ignore[attr-defined]
    return Settings(home=tmp_path, dsn=real.dsn, warehouse=warehouse, catalog_name=CATALOG)


@pytest.fixture
def harness(settings: Settings) -> Iterator[hp.Harness]:
    with hp.Harness(Stores(settings)) as opened:
        yield opened


@pytest.fixture
def tables(real: RealRig) -> list[TableRow]:
    """Tables of three topics, with one, two and three partitions."""
    return [real.table(partitions=count, topic=f"ends_{count}", files=True) for count in (1, 2, 3)]


@pytest.fixture
def log(tables: list[TableRow], monkeypatch: pytest.MonkeyPatch) -> CountedLog:
    made = CountedLog()
    for count, table in enumerate(tables, start=1):
        made.create_topic(table.spec.topic, count)
        for partition in range(count):
            for _ in range(RECORDS):
                made.append(table.spec.topic, partition, b"{}")
    monkeypatch.setattr(log_ends, "open_log", lambda _: made)
    return made


def test_the_page_asks_once_for_the_ends_of_all_topics(harness: hp.Harness, tables: list[TableRow], log: CountedLog):
    opened = harness.table(tables[2].name)
    with closing(LogEnds(harness)) as ends:

        def known() -> list[int | None]:
            ends.look_at(tables, opened=opened.name)
            return [ends.unread(table.table_id, 0) for table in tables]

        wait_until(lambda: known() == [RECORDS, 2 * RECORDS, 3 * RECORDS], "all ends are known")
        assert ends.of(opened, []) == (dict.fromkeys(range(3), RECORDS), None)
    assert log.asked[0] == {table.spec.topic for table in tables}
    assert log.alone == []


def test_a_topic_that_is_gone_is_named_and_the_others_are_known(
    harness: hp.Harness, tables: list[TableRow], log: CountedLog
):
    log.delete_topic(tables[1].spec.topic)
    shown = [harness.table(table.name) for table in tables]
    with closing(LogEnds(harness)) as ends:

        def seen() -> list[tuple[Mapping[int, int], str | None]]:
            ends.look_at(tables, opened=None)
            return [ends.of(table, []) for table in shown]

        wait_until(lambda: all(found or trouble for found, trouble in seen()), "all are answered")
        first, (gone, why), last = seen()
        assert (first, last) == (({0: RECORDS}, None), (dict.fromkeys(range(3), RECORDS), None))
        assert gone == {} and why is not None and tables[1].spec.topic in why


def test_costs_ask_the_ledger_once_for_the_heads_and_days_of_all_tables(
    settings: Settings, tables: list[TableRow], monkeypatch: pytest.MonkeyPatch
):
    asked = Counter[str]()
    rows = Database.rows

    def counted(self: Database, statement: str, *given: Any) -> Any:
        asked[statement] += 1
        return rows(self, statement, *given)

    monkeypatch.setattr(Database, "rows", counted)
    shown = CliRunner().invoke(cli, ["cost", "--json"], env=environment(settings, HARNESS_CATALOG_NAME=CATALOG))
    assert shown.exit_code == 0, shown.output
    assert {table.name for table in tables} <= {one["table"] for one in json.loads(shown.stdout)["tables"]}
    del asked["digests/of"]  # of the files that are read, table by table
    assert set(asked.values()) == {1}, asked
    assert "ledger/head" not in asked
