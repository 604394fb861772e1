"""What wakes an idle worker: commits, requests and changes of tables are announced; none is missed for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from harness_pipelines.ledgers.postgres import notify
from harness_pipelines.ledgers.postgres.notify import News
from harness_pipelines.ledgers.postgres.requests.recall import Recalls
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.producer import wait_until


@pytest.fixture
def heard(real: RealRig) -> Iterator[list[int | None]]:
    """What a follower hears, from when it listens on."""
    news, found = News(real.dsn), list[int | None]()
    end = news.follow(found.append)
    wait_until(lambda: listens(real), "it listens")
    yield found
    end()
    news.close()


def listens(real: RealRig) -> bool:
    return bool(real.ask("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND state = 'idle'", []))


def test_commits_of_a_table_are_heard(real: RealRig, heard: list[int | None]):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    wait_until(lambda: table.table_id in heard, "the commit is heard")
    assert None in heard, "and that there is a new table"


def test_requests_are_heard(real: RealRig, heard: list[int | None]):
    table = real.table()
    wait_until(lambda: table.table_id in heard, "that it was made")
    heard.clear()
    Recalls(real.database).ask(table, OverlayRequest.RECALL, where="id > 1", by="a test")
    wait_until(lambda: heard == [table.table_id], "the request is heard")


def test_specs_are_heard_of(real: RealRig, heard: list[int | None]):
    table = real.table()
    wait_until(lambda: table.table_id in heard, "that it was made")
    heard.clear()
    real.ledger.update_spec(table, table.spec.model_copy(update={"mode": "manual"}))
    wait_until(lambda: heard == [None], "tables have changed")


def test_a_follower_listens_again_after_its_session_was_ended(
    real: RealRig, heard: list[int | None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notify, "LOST_S_MAX", 0.1)
    real.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'", [])

    def again() -> bool:
        real.ask("SELECT pg_notify('harness', 'tables')", [])
        return None in heard

    wait_until(again, "it listens again")


def test_what_anybody_sends_on_the_channel_is_left_alone(real: RealRig, heard: list[int | None]):
    for payload in ("", "-1", "x", "1.5"):
        real.ask("SELECT pg_notify('harness', %s)", [payload])
    real.ask("SELECT pg_notify('harness', '7')", [])
    wait_until(lambda: 7 in heard, "a number is heard")
    assert heard == [7]


class Ending(News):
    """News whose listener lingers between its last look at who waits and its end."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.is_over, self.may_end = threading.Event(), threading.Event()

    def _run(self) -> None:
        super()._run()
        self.is_over.set()
        self.may_end.wait(30)


def test_who_comes_while_the_listener_ends_is_told_all_the_same(real: RealRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "IDLE_S", 0.0)
    news, found = Ending(real.dsn), list[int | None]()
    news.heard(1)
    assert news.is_over.wait(30), "nobody waits any more"
    end = news.follow(found.append)

    def again() -> bool:
        real.ask("SELECT pg_notify('harness', 'tables')", [])
        return None in found

    try:
        wait_until(again, "it listens")
    finally:
        news.may_end.set()
        end()
        news.close()
