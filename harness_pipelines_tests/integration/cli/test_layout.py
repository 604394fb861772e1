"""What people see of a batch view, and how they have it rewritten."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.ledgers.postgres import retention
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.stages.otree import otree, recluster
from harness_pipelines_tests.integration.cli.conftest import PARTITIONS, Cli
from harness_pipelines_tests.producer import KafkaRig, wait_until

ROWS = 800
SPEC = """table: {name}
topic: {topic}
columns: {{id: {{type: long, required: true}}, amount: 'decimal(9,2)', day: date}}
views: {views}
layout: {{columns: [day, amount], regions: 6}}
"""


@dataclass(frozen=True)
class Both:
    """A table with both views, and the producer of its topic."""

    name: str
    topic: str
    harness: Cli
    kafka: KafkaRig

    def produce(self, rows: int, *, first: int = 0) -> None:
        for partition in range(PARTITIONS):
            numbers = range(first + partition, first + rows, PARTITIONS)
            self.kafka.produce(self.topic, partition, [_value(i) for i in numbers])

    def run(self) -> None:
        """Until both views have everything."""
        self.harness("run", self.name, "--until-idle")

    def merge(self) -> None:
        """Move what the stream view has more, and nothing else."""
        with hp.connect(home=self.harness.home) as opened, _claimed(opened, self.name) as (stores, row, claim):
            otree.otree_once(stores, row, claim, trigger="test")

    def ask_rebuild(self) -> None:
        """A request whose worker died before its first move."""
        with hp.connect(home=self.harness.home) as opened:
            row = opened.table(self.name).row
            recluster.ask(opened.stores, row, recluster.plan_recluster(opened.stores, row, rebuild=True))

    def files(self) -> set[str]:
        """Paths of the batch view's files."""
        with hp.connect(home=self.harness.home) as opened:
            row = opened.table(self.name).row
            head = opened.stores.tables.head(row)
            assert head.batch is not None
            return {file.path for file in opened.stores.lake.region_files(row, head.batch.metadata)}

    def json(self, *words: str) -> Any:
        return json.loads(self.harness(*words, "--json").stdout)

    def truth(self) -> list[int]:
        return sorted(
            json.loads(v or b"")["id"] for records in self.kafka.acked(self.topic).values() for v in records.values()
        )

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.json("read", self.name, "--columns", "id")["rows"])


@contextmanager
def _claimed(opened: hp.Harness, name: str) -> Iterator[tuple[Stores, TableRow, Claim]]:
    stores, row = opened.stores, opened.table(name).row
    claim = stores.ledger.claim(row, Stage.OTREE, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=10))
    assert claim is not None
    yield stores, row, claim
    stores.ledger.release(claim)


def _value(number: int) -> bytes:
    return b'{"id":%d,"amount":%d.25,"day":"2026-0%d-15"}' % (number, number * 7919 % 1000, number % 9 + 1)


@pytest.fixture
def both(harness: Cli, rig: KafkaRig, tmp_path: Path) -> Iterator[Both]:
    with _applied(harness, rig, tmp_path, views="both") as found:
        yield found


@pytest.fixture
def batch_only(harness: Cli, rig: KafkaRig, tmp_path: Path) -> Iterator[Both]:
    with _applied(harness, rig, tmp_path, views="batch") as found:
        yield found


@contextmanager
def _applied(harness: Cli, rig: KafkaRig, folder: Path, *, views: str) -> Iterator[Both]:
    topic, name = rig.create(PARTITIONS), f"cli.b_{uuid.uuid4().hex[:10]}"
    file = folder / "table.yaml"
    file.write_text(SPEC.format(name=name, topic=topic, views=views))
    found = Both(name, topic, harness, rig)
    found.produce(ROWS)
    harness("table", "apply", str(file))
    yield found
    harness("table", "drop", name, "--yes", "--purge")


@pytest.fixture
def one_view(harness, spec):
    """A table with the stream view alone."""
    name, file = spec
    file.write_text(f"{file.read_text()}views: stream\n")
    harness("table", "apply", str(file))
    return name


def test_status_and_explain_show_four_parts_of_a_table_with_both_views(both):
    both.run()
    both.produce(20, first=ROWS)
    both.harness("run", both.name, "--stage", "ingest", "--until-idle")

    [seen] = both.json("status", both.name)["tables"]
    shown, plan = both.harness("status", both.name).output, both.json("explain", both.name)

    assert seen["lag"] == {"tail": 0, "buffer": 20, "stream": 0}
    assert seen["views"] == ["batch", "stream"]
    assert [p["batch_hi"] for p in seen["partitions"]] == [ROWS // 2, ROWS // 2]
    assert f"{ROWS // 2} | 0 | 10 | 0" in shown
    assert "▚ batch" in shown
    assert "0 not in the batch view yet" in shown
    assert [part["view"] for part in plan["lake"]] == ["batch"]
    assert "▚ batch" in both.harness("explain", both.name).output


def test_a_table_without_a_batch_view_is_shown_without_it(harness, one_view):
    shown = harness("status", one_view).output

    assert "▚" not in shown
    assert "batch" not in shown
    assert "lake" in shown


def test_table_show_says_what_each_copy_costs(both):
    both.run()

    shown = both.json("table", "show", both.name)

    assert shown["views"]["stream"]["rows"] == shown["views"]["batch"]["rows"] == ROWS
    assert shown["views"]["batch"]["reached"] == {"0": ROWS // 2, "1": ROWS // 2}
    assert shown["views"]["stream"]["name"] == f"{both.name}__stream"
    assert shown["batch_to_stream"] == round(shown["views"]["batch"]["bytes"] / shown["views"]["stream"]["bytes"], 3)
    assert "times the bytes of the stream view" in both.harness("table", "show", both.name).output


def test_a_table_with_the_batch_view_alone_is_shown_clustered_and_dropped_as_one_copy(batch_only):
    batch_only.run()

    shown = batch_only.json("table", "show", batch_only.name)
    plan = batch_only.json("explain", batch_only.name)

    assert {name: view["name"] for name, view in shown["views"].items()} == {"batch": batch_only.name}
    assert "batch_to_stream" not in shown
    assert [part["view"] for part in plan["lake"]] == ["batch"]
    assert len(batch_only.json("layout", batch_only.name)["regions"]) >= 4
    assert batch_only.ids() == batch_only.truth()
    assert batch_only.json("recluster", batch_only.name, "--rebuild", "--yes")
    assert batch_only.ids() == batch_only.truth()


def test_layout_before_the_first_merge_and_of_a_table_without_batch_view_says_why_there_is_none(both, one_view):
    assert "--until-idle" in both.harness("layout", both.name, code=2).stderr
    assert "views: stream" in both.harness("layout", one_view, code=2).stderr
    assert "views: stream" in both.harness("recluster", one_view, "--dry-run", code=2).stderr


def test_layout_gives_regions_sizes_and_scores_and_draws_them(both, tmp_path):
    both.run()

    seen = both.json("layout", both.name)
    both.harness("layout", both.name, "--plot", str(tmp_path / "both.png"))

    assert sum(region["rows"] for region in seen["regions"]) == ROWS
    assert seen["staged_share"] == 0
    assert seen["files"]["p50"] <= seen["files"]["p95"] <= seen["files"]["max"]
    assert seen["score"]["point_depth"] >= 1
    assert set(seen["regions"][0]["box"]) == {"_sample", "day", "amount"}
    assert seen["history"][-1]["score"] == seen["score"]
    assert sum(block["elementCount"] for block in seen["cubes"]) == ROWS
    assert {block["path"] for block in seen["cubes"]} <= {region["path"] for region in seen["regions"]}
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "not indexed" in both.harness("layout", both.name, "--plot", "x.png", "--columns", "id", code=2).stderr


@pytest.mark.long
def test_the_status_page_draws_the_regions_that_layout_names(both, page_url, browser_page):
    both.run()
    seen = both.json("layout", both.name)

    browser_page.goto(f"{page_url}/#{both.name}")

    expect(browser_page.locator("#picture rect.region")).to_have_count(
        sum("below" in r["box"]["_sample"] for r in seen["regions"]), timeout=30_000
    )
    expect(browser_page.locator("#picture figcaption")).to_contain_text(
        f"{len(seen['regions'])} regions over ({', '.join(seen['columns'])}) at version {seen['version']}"
    )
    expect(browser_page.locator("#picture strong").first).to_have_text(f"{seen['score']['point_depth']:.2f}")


def test_a_dry_run_tells_what_a_rebuild_takes_and_changes_nothing(both):
    both.run()
    before = both.json("layout", both.name)

    would = both.json("recluster", both.name, "--rebuild", "--dry-run")

    assert would["bytes"] == before["files"]["bytes"]
    assert would["files"] == before["files"]["count"]
    assert would["request"] is None
    assert "add --yes" in both.harness("recluster", both.name, "--rebuild", code=2).stderr
    assert both.json("layout", both.name)["version"] == before["version"]


@pytest.mark.long
def test_a_rebuild_writes_every_file_anew_and_keeps_every_row(both):
    both.run()
    before = both.json("table", "show", both.name)["views"]["batch"]["metadata"]

    done = both.json("recluster", both.name, "--rebuild", "--yes")

    after = both.json("layout", both.name)
    assert done["done"]
    assert both.json("table", "show", both.name)["views"]["batch"]["metadata"] != before
    assert after["staged_share"] == 0
    assert both.ids() == both.truth()
    assert "nothing to do" in both.harness("recluster", both.name, "--yes").output


@pytest.mark.long
def test_recluster_takes_what_is_staged_and_only_where_it_is_asked(both):
    both.run()
    both.produce(120, first=ROWS)
    both.harness("run", both.name, "--stage", "ingest", "--stage", "tier", "--until-idle")
    both.merge()
    staged = both.json("layout", both.name)
    assert staged["staged_share"] > 0

    both.harness("recluster", both.name, "--yes")

    assert both.json("layout", both.name)["staged_share"] == 0
    assert both.ids() == both.truth()


def test_only_regions_that_a_condition_may_match_are_chosen(both):
    both.run()
    regions = both.json("layout", both.name)["regions"]

    some = both.json("recluster", both.name, "--rebuild", "--where", "day < '2026-02-01'", "--dry-run")
    none = both.json("recluster", both.name, "--rebuild", "--where", "day < '2025-02-01'", "--dry-run")

    assert 0 < len(some["regions"]) < len(regions)
    assert none["parts"] == []
    assert "no region '22'" in both.harness("recluster", both.name, "--regions", "22", "--dry-run", code=2).stderr


@pytest.mark.long
def test_an_interrupted_request_is_gone_on_with_and_can_be_given_up(both):
    both.run()
    both.ask_rebuild()

    assert both.json("recluster", both.name, "--cancel")["cancelled"] != []
    assert both.json("recluster", both.name, "--cancel")["cancelled"] == []

    both.ask_rebuild()
    before = both.json("layout", both.name)["version"]
    both.run()

    assert both.json("layout", both.name)["version"] > before
    assert both.json("recluster", both.name, "--cancel")["cancelled"] == []
    assert both.ids() == both.truth()


@pytest.mark.long
def test_a_request_of_many_moves_goes_on_where_it_was_interrupted(both, monkeypatch):
    """Each move takes one region; after the first one the command is stopped and called again."""
    for module in (otree, recluster):
        monkeypatch.setattr(module, "BUDGET_BYTES", 1)
    both.run()
    old = both.files()
    with hp.connect(home=both.harness.home) as opened:
        row = opened.table(both.name).row
        begun = recluster.ask(opened.stores, row, recluster.plan_recluster(opened.stores, row, rebuild=True))
        left = next(recluster.run(opened.stores, row, begun.request))
    after_one = both.files()

    assert len(begun.parts) == begun.moves == len(old) > 2
    assert len(left.parts) == len(begun.parts) - 1
    done = both.json("recluster", both.name, "--rebuild", "--yes")

    assert done["request"] == begun.request.request_id
    assert done["moves"] == len(begun.parts) - 1
    assert after_one - old <= both.files(), "what the first move had written was written again"
    assert not both.files() & old
    assert both.ids() == both.truth()


@pytest.mark.long
def test_what_a_rebuild_leaves_is_removed_when_a_person_says_so(both, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "GUARD_FREE_BYTES", 0)
    monkeypatch.setattr(retention, "SHARE_MAX", 0.01)
    both.run()
    spec = tmp_path / "brief.yaml"
    brief = "retention: {versions: 1s, snapshots: 1, grace: 1s}\n"
    spec.write_text(SPEC.format(name=both.name, topic=both.topic, views="both") + brief)
    both.harness("table", "apply", str(spec))
    both.harness("recluster", both.name, "--rebuild", "--yes")
    expire = ("run", both.name, "--stage", "expire")

    def trouble() -> str:
        return str(both.json(*expire, "--for", "3s")["tables"][0]["trouble"])

    wait_until(lambda: "--remove-large" in trouble(), "expire asks for a person's word")
    assert both.json(*expire, "--dry-run")["tables"][0]["deleted"]

    def removed() -> bool:  # what one run condemns, a later one deletes
        both.harness(*expire, "--for", "3s", "--remove-large")
        return bool(both.json(*expire, "--dry-run")["tables"][0]["deleted"] == [])

    wait_until(removed, "nothing is left to delete")
    assert both.json("fsck", both.name)["ok"]
