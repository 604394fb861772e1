"""What the tutorial leads through, done by a browser: two regions are chosen and rewritten, and a plot shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import AssetKey
from playwright.sync_api import Page, expect

from harness_pipelines.read.report.layout import look
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.browser import PATIENCE_MS, browsing
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import RUN_S, DagsterRig, dagster_over
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

pytestmark = pytest.mark.timeout(2400)
CHOSEN = ("0000", "0001")


@pytest.fixture
def table(make_rig: MakeRig) -> TableRig:
    """A table whose rows are merged, and left as they come."""
    layout = {"columns": ["n"], "regions": 4, "staged_ratio": 10.0}
    rules = {"tier": {"max_age": "2s"}, "freshness": {"lake": "4s"}}
    return make_rig(views="both", layout=layout, **rules)


@pytest.fixture
def dagster(settings: Settings, table: TableRig, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, [table.table.spec]) as made:
        yield made


@pytest.mark.long
def test_a_person_reclusters_two_regions_in_the_browser(table: TableRig, dagster: DagsterRig):
    asset = f"{dagster.room.url}/assets/{table.name.replace('.', '/')}"
    for _ in range(2):  # the first merge makes the regions, the second leaves something to do
        table.produce(2000)
        dagster.room.up()
        wait_until(lambda: merged(table), "the sensors had it merged", deadline_s=2 * RUN_S)
    before = look(table.stores, table.table.row).score.staged_share
    assert before > 0

    with browsing() as page:
        launch(page, f"{asset}/otree?view=partitions")
        wait_until(lambda: backfilled(dagster), "the backfill has ended", deadline_s=2 * RUN_S)
        page.goto(f"{dagster.room.url}/runs?view=backfills")
        expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=PATIENCE_MS)
        page.goto(f"{asset}?view=overview")
        page.get_by_text("Plots", exact=True).click()
        expect(page.get_by_text("staged_share", exact=True)).to_be_visible(timeout=PATIENCE_MS)

    after = look(table.stores, table.table.row).score.staged_share
    assert after < before
    assert plotted(table, dagster)[-2:] == [before, after]
    table.assert_exact()


def launch(page: Page, address: str) -> None:
    """Choose the regions in Dagster's dialog, and launch their backfill."""
    page.goto(address)
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Select a partition or create one").click()
    for count, region in enumerate(CHOSEN, 1):
        page.get_by_placeholder("Filter partitions").fill(region)
        row = page.get_by_role("menuitem").filter(has_text=region)
        expect(row).to_have_count(1)
        row.click()
        expect(dialog.get_by_text(re.compile(rf"^{count} partitions?$"))).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Launch backfill").click()


def merged(table: TableRig) -> bool:
    """All that was produced is in the batch view."""
    positions = table.table.positions()
    ends = {partition: len(records) for partition, records in table.kafka.acked(table.topic).items()}
    return all(p.bounds.batch_hi == ends[p.partition] for p in positions)


def backfilled(dagster: DagsterRig) -> bool:
    """Dagster says that the backfill is done; one that failed is named."""
    found = dagster.instance.get_backfills()
    assert not [one for one in found if "FAILED" in one.status.value], found
    return [one.status.value for one in found] == ["COMPLETED_SUCCESS"]


def plotted(table: TableRig, dagster: DagsterRig) -> list[float]:
    """The staged share of the table's batch view as Dagster plots it, in the order of time."""
    key = AssetKey(table.name.split("."))
    found = dagster.instance.fetch_observations(key, limit=50, ascending=True).records
    seen = [r.asset_observation.metadata.get("staged_share") for r in found if r.asset_observation]
    return [float(value.value) for value in seen if value is not None]  # type: ignore[arg-type]
