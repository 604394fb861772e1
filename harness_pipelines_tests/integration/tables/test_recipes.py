"""The programs of the documentation about consumers, run as they stand there but for names."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.ledgers.postgres.states import StateClaim
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.own_mover import OwnMove
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import INGEST

LINES_MAX = 80


def recipe(page: str, name: str, **instead: str) -> str:
    """What *page* has between the fences behind ``run: name``, with other texts *instead* of its own."""
    text = (Path(__file__).parents[3] / "docs/how-to" / page).read_text()
    [code] = re.findall(rf"<!-- run: {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) <= LINES_MAX
    for old, new in instead.items():
        assert old in code
        code = code.replace(old, new)
    return str(code)


def program(page: str, name: str, instead: dict[str, str]) -> Any:
    """The function `run` of a recipe in Python."""
    found: dict[str, Any] = {"__name__": "recipe"}
    exec(recipe(page, name, **instead), found)
    return found["run"]


class Shop:
    """A topic of orders, its table, and what a consumer of it must come to."""

    def __init__(self, harness: hp.Harness, kafka: KafkaRig) -> None:
        self.harness, self.kafka = harness, kafka
        self.topic, self.state = kafka.create(2), f"s-{uuid.uuid4().hex[:10]}"
        columns = {"customer": "string", "amount": "long"}
        self.table = harness.apply(
            TableSpec.model_validate({"table": f"shop.{self.topic}", "topic": self.topic, "columns": columns})
        )
        self.amounts: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()

    def sell(self, count: int) -> None:
        """*count* orders in each partition, ingested."""
        for partition in range(2):
            sold = [(f"c{i % 3}", i) for i in range(count)]
            self.kafka.produce(
                self.topic, partition, [b'{"customer":"%s","amount":%d}' % (c.encode(), i) for c, i in sold]
            )
            for customer, amount in sold:
                self.amounts[customer] += amount
                self.orders[customer] += 1
        Worker(self.harness.stores, [self.table.row], WorkerOptions(stages=INGEST, until_idle=True)).run()

    @property
    def last(self) -> Any:
        found = self.harness.states.last(self.state)
        assert found is not None
        return found

    def amounts_at_state(self) -> Counter[str]:
        """What a read at the state sums up to."""
        found: Counter[str] = Counter()
        for row in self.table.read(at=f"state:{self.state}").to_pylist():
            found[row["customer"]] += row["amount"]
        return found


@pytest.fixture
def shop(harness: hp.Harness, kafka: KafkaRig) -> Shop:
    return Shop(harness, kafka)


def test_the_service_counts_each_record_once_whatever_ends_it(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    run = program(
        "states.md", "python-service", {'"shop.orders"': f'"{shop.table.name}"', '"totals"': f'"{shop.state}"'}
    )
    shop.sell(10)
    commit, ended = StateClaim.commit, KeyboardInterrupt()

    def end_after_the_second(held: StateClaim, *args: Any, **words: Any) -> int:
        made = commit(held, *args, **words)
        if made == 2:
            raise ended
        return made

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(StateClaim, "commit", end_after_the_second)
        run(shop.harness, once=True)
    run(shop.harness, once=True)
    shop.sell(7)
    run(shop.harness, once=True)
    assert shop.last.payload == shop.amounts
    assert shop.amounts_at_state() == shop.amounts


@pytest.fixture
def sink(shop: Shop) -> Iterator[str]:
    """An Iceberg table for the Spark job."""
    spark, name = shop.harness.stores.spark(), f"harness.reports.t{uuid.uuid4().hex[:10]}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS harness.reports")
    spark.sql(f"CREATE TABLE {name} (customer string, amount bigint) USING iceberg")
    yield name
    spark.sql(f"DROP TABLE {name} PURGE")


@pytest.mark.long
def test_the_spark_job_has_each_record_once_and_names_the_snapshot_that_has_it(
    shop: Shop, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = {
        '"shop.orders"': f'"{shop.table.name}"',
        "harness.reports.totals": sink,
        '"spark-totals"': f'"{shop.state}"',
    }
    run, spark = program("states.md", "spark-job", names), shop.harness.stores.spark()

    def totals(snapshot: int) -> dict[str, int]:
        rows = spark.sql(f"SELECT * FROM {sink} VERSION AS OF {snapshot}").collect()
        return {row["customer"]: row["amount"] for row in rows}

    shop.sell(10)
    run(shop.harness, spark, str(tmp_path))
    first, after_first = shop.last, dict(shop.amounts)
    assert totals(first.sink["snapshot"]) == after_first
    shop.sell(5)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(StateClaim, "commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
        run(shop.harness, spark, str(tmp_path))
    assert totals(shop.last.sink["snapshot"]) == after_first == shop.amounts_at_state()  # they still agree
    run(shop.harness, spark, str(tmp_path))
    assert shop.last.sources[shop.table.name] == {0: 15, 1: 15}
    assert totals(shop.last.sink["snapshot"]) == shop.amounts == shop.amounts_at_state()


def test_the_mover_publishes_rows_and_counts_together_or_neither(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    names = {"moved-per-customer": shop.state, "shop.orders": shop.table.name, "1_000_000": "8"}
    run = program("own-mover.md", "own-mover", names)
    shop.sell(10)
    append, appended = OwnMove.append, []

    def end_at_the_second(move: OwnMove, rows: Any) -> None:
        append(move, rows)
        appended.append(rows.num_rows)
        if len(appended) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(OwnMove, "append", end_at_the_second)
        run(shop.harness, once=True)
    assert sum(shop.last.payload.values()) == 8
    assert shop.table.read(at=f"state:{shop.state}").num_rows == 8
    run(shop.harness, once=True)
    assert shop.last.payload == shop.orders
    assert all(p.bounds.stream_hi == p.bounds.buffer_hi == 10 for p in shop.table.positions())
    assert shop.table.audit(full=True).ok


def test_a_program_of_another_language_holds_and_commits_by_sql_with_no_other_rights(shop: Shop):
    holder = str(uuid.uuid4())
    code = recipe(
        "states.md",
        "sql",
        **{"totals": shop.state, "shop.orders": shop.table.name, "a2f0c9be-0000-4000-8000-000000000001": holder},
    )
    shop.sell(4)
    with psycopg.connect(shop.harness.stores.dsn, autocommit=True) as connection:
        connection.execute("SET ROLE harness_consumer")
        said = [connection.execute(one).fetchall() for one in re.sub("--.*", "", code).split(";") if one.strip()]
        assert said[:2] == [[(1,)], [(1,)]]
        for forbidden in ("UPDATE harness.states SET epoch = 9", "DELETE FROM harness.versions"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
        late = f"SELECT harness.state_commit('{shop.state}', '{holder}', 1, interval '1 minute', '{{}}', 'late')"
        with pytest.raises(psycopg.Error) as refused:  # it gave the state back
            connection.execute(late)
        assert refused.value.sqlstate == "HP012"
    assert shop.last.sources == {shop.table.name: {0: 3, 1: 2}}
    assert shop.last.sink == {"snapshot": 42}
    assert shop.table.read(at=f"state:{shop.state}").num_rows == 5
    assert json.loads(json.dumps(shop.last.to_json()))["checkpoint"] == "savepoint-7"
