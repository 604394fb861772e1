"""The keyed demo, small: what it says is so, it finds what is not so, and it leaves nothing behind."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.demo.flow import DemoOptions, run_demo
from harness_pipelines.demo.orders import KEY, PRICE, Orders
from harness_pipelines.demo.scenario import Log, Record
from harness_pipelines.demo.show import Moment, Show
from harness_pipelines.services import Services
from harness_pipelines_tests.rig import settings_for

OPTIONS = DemoOptions(rows=3_000, rate=3_000, keep=False)
AS_PLAIN = [
    "produced", "read_arrow", "read_spark", "missing", "duplicated", "quarantined", "sums_equal", "consistent_reads",
    "freshness_ms", "moves", "seconds", "views",
]  # fmt: skip


@pytest.fixture
def words(harness, rig) -> Iterator[dict[str, object]]:
    """A table of its own, whose records come to the lake sooner than the demo's, and to few regions."""
    name = f"demo.t_{uuid.uuid4().hex[:10]}"
    yield {"table": name, "layout": {"regions": 2}, "tier": {"max_age": "4s"}, "freshness": {"lake": "4s"}}
    if name in harness("table", "list").stdout:
        harness("table", "drop", name, "--yes", "--purge")
        rig.delete(name)


@pytest.fixture
def settings(services: Services):
    found = services.current()
    return settings_for(found, services.home, owner_dsn=found.owner)


def folders(home: Path, name: str) -> list[Path]:
    return list((home / "demo").glob(f"{name.partition('.')[2]}-*"))


def test_the_final_state_and_every_read_are_what_the_producer_s_log_leaves(settings, words):
    result = run_demo(settings, Orders(**words), OPTIONS, Show())
    told, log = result.to_json(), result.log

    assert result.faults == ()
    assert sorted(told) == sorted([*AS_PLAIN, "state_equal"])
    assert told["state_equal"] is told["sums_equal"] is True
    assert told["produced"] == len(log) == OPTIONS.rows
    assert told["read_arrow"] == told["read_spark"] == told["views"]["batch_rows"] == (log.ends == len(log)).sum()
    assert told["consistent_reads"]["tried"] > 0
    assert folders(settings.home, str(words["table"])) == []


def test_without_spark_arrow_moves_the_rows_and_compares_them_alone(settings, words):
    options = DemoOptions(rows=1_000, rate=3_000, keep=False, no_spark=True)

    result = run_demo(settings, Orders(**words), options, Show())
    told = result.to_json()

    assert result.faults == ()
    assert (told["state_equal"], told["sums_equal"], told["read_spark"]) == (True, True, None)
    assert told["read_arrow"] == told["views"]["batch_rows"] > 0
    with hp.connect(settings) as harness:
        assert harness.table(str(words["table"])).spec.engine == "arrow"


class Lying(Orders):
    """Three records are not sent as the log has them; `lies` tells of which keys."""

    def make(self, folder: Path, rows: int) -> Log:
        log = super().make(folder, rows)
        numbers, keys = np.arange(len(log)), log.rows.column(KEY).to_numpy()
        live = np.flatnonzero(log.ends == len(log))
        gone = [n for n in np.flatnonzero(log.ends == numbers).tolist() if keys[n] not in keys[n + 1 :]]
        self._chosen = {"price": int(live[0]), "tombstone": int(live[1]), "put": gone[0]}
        self.lies = {word: int(keys[number]) for word, number in self._chosen.items()}
        self._sent = 0
        return log

    def records(self, rows: pa.Table) -> Sequence[Record]:
        found = list(super().records(rows))
        for word, number in self._chosen.items():
            if 0 <= (i := number - self._sent) < len(found):
                found[i] = (found[i][0], None if word == "tombstone" else self._other(rows.slice(i, 1), found))
        self._sent += len(found)
        return found

    def _other(self, row: pa.Table, found: Sequence[Record]) -> bytes:
        like = json.loads(next(value for _, value in found if value is not None and PRICE.encode() in value))
        return json.dumps({**like, KEY: row.column(KEY)[0].as_py(), PRICE: "0.01"}).encode()


@pytest.mark.long
def test_records_that_are_not_what_the_log_has_are_found_and_their_keys_named(settings, words):
    scenario = Lying(**words)

    result = run_demo(settings, scenario, OPTIONS, Show())
    told, state = result.to_json(), result.verdict.state

    assert not result.ok
    assert (told["state_equal"], told["sums_equal"], told["missing"]) == (False, False, 1)
    assert told["consistent_reads"]["wrong"] > 0
    assert state is not None
    for reader in ("Arrow", "Spark"):
        assert f"{reader}: 1 rows are missing: {KEY} {scenario.lies['tombstone']}" in state
        assert f"{reader}: 1 rows have another {PRICE}: {KEY} {scenario.lies['price']}" in state
        strange = f"{reader}: 1 rows are of a key that is deleted or was never sent: {KEY} {scenario.lies['put']}"
        assert strange in state


class Interrupted(Show):
    """Somebody presses Ctrl-C in the middle."""

    def update(self, moment: Moment) -> None:
        super().update(moment)
        if moment.sent:
            raise KeyboardInterrupt


@pytest.mark.long
def test_a_demo_that_is_interrupted_leaves_no_worker_no_reader_and_no_folder(harness, settings, words):
    with pytest.raises(KeyboardInterrupt):
        run_demo(settings, Orders(**words), OPTIONS, Interrupted())

    claims = json.loads(harness("status", str(words["table"]), "--json").stdout)["tables"][0]["claims"]
    assert [claim for claim in claims if claim["alive"]] == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("demo/")] == []
    assert folders(settings.home, str(words["table"])) == []
