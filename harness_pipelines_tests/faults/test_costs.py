"""`harness cost` shows what a worker did and spent; what it spent in its last seconds is noted when it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from harness_pipelines.cli.main import cli
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TableRig, environment, running
from harness_pipelines_tests.scrape import scrape_ledger, served


def cost(rig: TableRig, *words: str) -> dict[str, Any]:
    shown = CliRunner().invoke(cli, ["cost", rig.name, *words, "--json"], env=environment(rig.stores.settings))
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_a_day_of_a_table_has_what_its_worker_took_and_spent(make_rig: MakeRig, tmp_path: Path):
    rig = make_rig(partitions=1)
    [empty] = cost(rig)["tables"]
    assert (empty["days"], empty["buffer_bytes"], empty["lake_bytes"]) == ([], 0, 0)
    said = CliRunner().invoke(cli, ["cost", rig.name], env=environment(rig.stores.settings)).output
    assert "no work was counted" in said

    rig.produce(5_000)
    worker = rig.worker(INGEST)
    with running(worker):
        rig.await_rows(5_000)
        wait_until(lambda: worker.progress[0].rows == 5_000, "the worker shows all rows")
        with served(worker, rig.table) as url:
            found = scrape_ledger(url)
            assert (found.value("harness_taken_bytes_total", table=rig.name) or 0) > 100_000
            assert (found.value("harness_stage_cpu_seconds_total", table=rig.name, stage="ingest") or 0) > 0
    rig.stores.costs.count([rig.name])

    prices = tmp_path / "prices.yaml"
    prices.write_text("{currency: EUR, postgres_gb_month: 1000, worker_cpu_hour: 3600}")
    shown = cost(rig, "--prices", str(prices))
    [table] = shown["tables"]
    [day] = table["days"]
    assert (shown["examples"], shown["prices"]["currency"]) == (False, "EUR")
    assert day["records"] == 5_000
    assert day["taken_bytes"] == sum(len(value or b"") for value in rig.kafka.acked(rig.topic)[0].values())
    assert day["worker_cpu_s"] > 0
    assert abs(day["worker_cpu_price"] - day["worker_cpu_s"]) < 0.001
    assert table["stored_month_price"] > 0
    assert table["buffer_bytes"] > 0
    said = CliRunner().invoke(cli, ["cost", rig.name], env=environment(rig.stores.settings)).output
    assert "5,000 records" in said
    assert "prices are examples" in said
