"""Requests of people that Postgres lost or somebody cancelled while somebody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from harness_pipelines.layout.requested import Request
from harness_pipelines.ports.requests import RequestCancelled, RequestLost
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.stages.otree import look, recall, recluster
from harness_pipelines_tests.contract.recall_rig import Lake, fill
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")  # of the views, which Spark knows

SHORT = timedelta(minutes=5)  #: the claim of another worker, so that `run` only looks on


@pytest.fixture
def lake(real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(look, "due", lambda *_, **__: [])  # a relayout would need Spark
    made = Lake(real, tmp_path)
    fill(made)
    yield made
    made.stores.close()


def test_a_recall_that_the_ledger_lost_is_no_recall_that_was_done(lake: Lake):
    other = lake.rig.claim(lake.row, Stage.OTREE, lease=SHORT)
    asked = recall.ask(lake.stores, lake.row, OverlayRequest.RECALL, where="id < 4")
    looks = recall.run(lake.stores, lake.row, asked)
    assert next(looks).is_open

    lake.rig.ask("DELETE FROM harness.recalls WHERE recall = %s", [asked.recall_id])

    with pytest.raises(RequestLost, match=rf"{lake.row.name}: .* no longer has request {asked.recall_id}: .* ask once"):
        next(looks)
    lake.rig.ledger.release(other)


def test_a_recall_whose_number_went_to_another_request_is_lost(lake: Lake):
    other = lake.rig.claim(lake.row, Stage.OTREE, lease=SHORT)
    asked = recall.ask(lake.stores, lake.row, OverlayRequest.RECALL, where="id < 4")
    looks = recall.run(lake.stores, lake.row, asked)
    assert next(looks).is_open

    lake.rig.ask(
        "UPDATE harness.recalls SET asked_at = clock_timestamp(), wanted = 'id > 9' WHERE recall = %s",
        [asked.recall_id],
    )

    with pytest.raises(RequestLost):
        next(looks)
    lake.rig.ledger.release(other)


@pytest.mark.parametrize("lost", ["DELETE FROM harness.reclusters", "UPDATE harness.reclusters SET upto = upto + 1"])
def test_a_request_to_recluster_that_the_ledger_lost_is_not_done(
    lake: Lake, lost: str, monkeypatch: pytest.MonkeyPatch
):
    other = lake.rig.claim(lake.row, Stage.OTREE, lease=SHORT)
    monkeypatch.setattr(recluster, "_looked_at", lambda *_: None)  # these files are not of a region tree
    asked = lake.stores.reclusters.ask(lake.row, paths=("",), upto=7, rebuild=True).request
    looks = recluster.run(lake.stores, lake.row, asked)
    next(looks)

    lake.rig.ask(f"{lost} WHERE table_id = %s", [lake.row.table_id])

    with pytest.raises(RequestLost, match=rf"no longer has request {asked.request_id}"):
        next(looks)
    lake.rig.ledger.release(other)


def test_a_request_to_recluster_that_ended_is_open_no_more(lake: Lake):
    asked: Request = lake.stores.reclusters.ask(lake.row, paths=("",), upto=7, rebuild=True).request
    assert lake.stores.reclusters.is_open(lake.row, asked)

    lake.stores.reclusters.end(lake.row, asked)

    assert not lake.stores.reclusters.is_open(lake.row, asked)


def test_a_request_to_recluster_that_somebody_cancelled_is_not_done(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    other = lake.rig.claim(lake.row, Stage.OTREE, lease=SHORT)
    monkeypatch.setattr(recluster, "_looked_at", lambda *_: None)  # these files are not of a region tree
    asked = lake.stores.reclusters.ask(lake.row, paths=("",), upto=7, rebuild=True).request
    looks = recluster.run(lake.stores, lake.row, asked)
    next(looks)

    lake.stores.reclusters.cancel(lake.row, asked)
    lake.stores.reclusters.end(lake.row, asked)  # a worker that looked before finds nothing left and comes late

    with pytest.raises(RequestCancelled, match=rf"{lake.row.name}: request {asked.request_id} was cancelled"):
        next(looks)
    lake.rig.ledger.release(other)


def test_a_request_that_got_the_number_of_a_lost_one_is_not_ended_in_its_place(lake: Lake):
    lost = lake.stores.reclusters.ask(lake.row, paths=("",), upto=7, rebuild=True).request
    lake.rig.ask("UPDATE harness.reclusters SET upto = 8 WHERE table_id = %s", [lake.row.table_id])

    lake.stores.reclusters.cancel(lake.row, lost)

    assert [one.upto for one in lake.stores.reclusters.open(lake.row)] == [8]
