"""The status page in a browser, over real services."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psycopg
import pytest
from playwright.sync_api import Locator, Page, expect

import harness_pipelines as hp
from harness_pipelines.chaos.proxy import PostgresProxy
from harness_pipelines.cli.operate.serve import serving_here
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.serve.page.content import Facts, everything
from harness_pipelines.services.state import free_port
from harness_pipelines_tests.browser import PATIENCE_MS
from harness_pipelines_tests.integration.cli.conftest import GOOD
from harness_pipelines_tests.producer import DEADLINE_S

HTML = '<img src=x onerror="window.hurt=1"><b>bold</b>'
SOON_MS = PATIENCE_MS


def cells(page: Page, partition: int) -> dict[str, Locator]:
    """What the page says of one partition, by tier."""
    row = page.locator(f'.bars tr[data-partition="{partition}"]')
    return {tier: row.locator(f'td[data-tier="{tier}"]') for tier in ("batch", "stream", "buffer", "no_rows", "tail")}


def expect_tiers(page: Page, partition: int, **sizes: int) -> None:
    for tier, size in sizes.items():
        expect(cells(page, partition)[tier]).to_have_text(str(size), timeout=SOON_MS)


def produce(rig, topic, *, first, rows):
    for partition in range(2):
        values = [b'{"id":%d,"amount":1}' % i for i in range(first + partition, first + rows, 2)]
        rig.produce(topic, partition, values)


@contextmanager
def claimed(opened: hp.Harness, name: str, stage: Stage) -> Iterator[Claim]:
    ledger, row = opened.stores.ledger, opened.table(name).row
    claim = ledger.claim(row, stage, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=10))
    assert claim is not None
    yield claim
    ledger.release(claim)


def answer(url: str, *, method: str = "GET", **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=DEADLINE_S) as found:
            return found.status, found.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.long
def test_the_page_shows_where_the_records_are_and_keeps_up_without_a_reload(
    harness, rig, table, page_url, browser_page
):
    topic = json.loads(harness("status", table, "--json").stdout)["tables"][0]["topic"]
    harness("run", table, "--stage", "tier", "--until-idle")
    produce(rig, topic, first=100, rows=20)
    harness("run", table, "--stage", "ingest", "--until-idle")
    produce(rig, topic, first=200, rows=8)

    browser_page.goto(page_url)
    line = browser_page.get_by_role("button", name=table)
    if line.get_attribute("aria-expanded") != "true":  # as it is where this is the only table
        line.click()

    expect_tiers(browser_page, 0, batch=0, stream=GOOD // 2, buffer=10, no_rows=1, tail=4)
    expect_tiers(browser_page, 1, batch=0, stream=GOOD // 2, buffer=10, tail=4)
    expect(browser_page.get_by_role("img", name="partition 1: batch view 0, stream view 30, buffer 10")).to_be_visible()
    expect(browser_page.locator(".notice", has_text="in quarantine: 1 record")).to_contain_text(
        f"harness quarantine list {table}"
    )

    browser_page.evaluate("window.kept = document.querySelector('.bars')")
    harness("run", table, "--stage", "ingest", "--until-idle")

    expect_tiers(browser_page, 0, buffer=14, tail=0)
    expect_tiers(browser_page, 1, buffer=14, tail=0)
    assert browser_page.evaluate("window.kept === document.querySelector('.bars')"), "it was drawn anew"


@pytest.mark.long
def test_open_moves_claims_and_trouble_are_shown_with_the_way_on_and_as_text(harness, table, page_url, browser_page):
    browser_page.goto(f"{page_url}/#{table}")
    with hp.connect(home=harness.home) as opened, claimed(opened, table, Stage.TIER) as claim:
        ledger, row = opened.stores.ledger, opened.table(table).row
        draft = MoveDraft(
            stage=Stage.TIER, shard=0, lo={0: 0}, hi={0: 5}, base_version=1, schema_version=1, trigger="test"
        )
        move = ledger.plan_move(claim, draft)
        ledger.note_failure(move, error=f"a file broke {HTML}", counts=True)
        ledger.stop_table(row, f"a record does not fit {HTML}")

        shown = browser_page.locator(".moves tbody tr")
        expect(shown).to_contain_text(f"a file broke {HTML}", timeout=SOON_MS)
        expect(shown.locator("td").nth(5)).to_have_text("1")
        expect(shown.locator("td").nth(6)).to_have_text(claim.holder[:8])
        expect(browser_page.locator(".claims tbody tr").first).to_contain_text(claim.holder[:8])
        expect(browser_page.locator(".notice.bad")).to_contain_text(HTML)
        expect(browser_page.locator(".notice.bad code")).to_have_text(f"harness run {table}")
        expect(browser_page.locator(f'[id="line-{table}"] .state')).to_have_text("stopped")
        assert browser_page.locator("main img, main b").count() == 0
        assert browser_page.evaluate("window.hurt") is None

        ledger.close_move(claim, move, state=MoveState.QUARANTINED, error="given up")
        ledger.stop_table(row, None)
        expect(shown).to_contain_text(f"harness run {table} --retry-stuck", timeout=SOON_MS)
        expect(browser_page.locator(f'[id="line-{table}"] .state')).to_have_text("stuck")


@pytest.mark.long
def test_numbers_look_old_as_soon_as_the_server_is_gone(harness, table, browser_page, tmp_path):
    port = free_port(tmp_path, "page")  # which no connection of another program takes while it is free again
    with hp.connect(home=harness.home) as opened:
        with serving_here(opened, port) as (url, _):
            browser_page.goto(f"{url}/#{table}")
            expect_tiers(browser_page, 1, buffer=GOOD // 2)
            expect(browser_page.locator("body")).not_to_have_class("old")

        expect(browser_page.get_by_role("alert")).to_contain_text("does not answer", timeout=SOON_MS)
        expect(browser_page.locator("body")).to_have_class("old")
        expect(browser_page.locator("#pulse")).to_contain_text("ago")
        expect_tiers(browser_page, 1, buffer=GOOD // 2)

        with serving_here(opened, port):
            expect(browser_page.locator("body")).not_to_have_class("old", timeout=SOON_MS)
            expect(browser_page.get_by_role("alert")).to_be_empty()


@pytest.mark.long
def test_numbers_look_old_while_the_ledger_is_away_and_are_new_when_it_is_back(harness, table, browser_page):
    settings = hp.connect(home=harness.home).settings
    assert settings.dsn is not None
    proxy = PostgresProxy(settings.dsn)
    try:
        with hp.connect(replace(settings, dsn=proxy.dsn)) as opened, serving_here(opened, None) as (url, _):
            browser_page.goto(f"{url}/#{table}")
            expect_tiers(browser_page, 1, buffer=GOOD // 2)

            proxy.down()
            alert = browser_page.get_by_role("alert")
            expect(alert).to_contain_text("The ledger cannot be read", timeout=SOON_MS)
            expect(browser_page.locator("body")).to_have_class("old")

            proxy.up()
            expect(alert).to_be_empty(timeout=SOON_MS)
            expect(browser_page.locator("body")).not_to_have_class("old")
    finally:
        proxy.close()


@pytest.mark.long
def test_a_ledger_that_hangs_is_named_and_holds_up_no_page(harness, table, browser_page):
    settings = hp.connect(home=harness.home).settings
    assert settings.dsn is not None
    proxy = PostgresProxy(settings.dsn)
    try:
        with hp.connect(replace(settings, dsn=proxy.dsn)) as opened, serving_here(opened, None) as (url, _):
            browser_page.goto(f"{url}/#{table}")
            expect_tiers(browser_page, 1, buffer=GOOD // 2)

            proxy.freeze()
            alert = browser_page.get_by_role("alert")
            expect(alert).to_contain_text("the ledger has not answered for", timeout=SOON_MS)
            assert answer(f"{url}/page.css")[0] == 200

            proxy.down()  # what hangs is cut: nothing else ends it
            proxy.up()
            expect(alert).to_be_empty(timeout=SOON_MS)
    finally:
        proxy.close()


@pytest.mark.long
def test_without_kafka_the_page_shows_what_the_ledger_knows_and_says_so(harness, table, browser_page):
    settings = hp.connect(home=harness.home).settings
    with hp.connect(replace(settings, kafka="127.0.0.1:1")) as opened, serving_here(opened, None) as (url, _):
        browser_page.goto(f"{url}/#{table}")

        expect(browser_page.locator("#warning")).to_contain_text("127.0.0.1:1", timeout=SOON_MS)
        expect_tiers(browser_page, 1, stream=0, buffer=GOOD // 2)
        expect(cells(browser_page, 1)["tail"]).to_have_text("?")


def test_two_hundred_tables_are_filtered_and_opened_with_the_keyboard(page_url, browser_page):
    line = {"state": "working", "tail": 0, "buffer": 7, "stream": None, "since_tier_s": 1, "late": False, "busy": []}
    names = [*(f"many.t_{i:03}" for i in range(200)), HTML]
    lines = [{**line, "table": name, "quarantined": 0} for name in names]
    lines[150]["state"] = "stuck"
    found = {"at": datetime.now(UTC).isoformat(), "kafka": None, "open": None, "tables": lines}
    browser_page.route("**/api/status*", lambda route: route.fulfill(json=found))
    browser_page.goto(page_url)
    buttons = browser_page.locator(".name")

    expect(buttons).to_have_count(201)
    expect(buttons.first).to_have_text("many.t_150")
    expect(buttons.filter(has_text=HTML)).to_have_count(1)
    expect(browser_page.locator("#summary")).to_have_text("201 tables · 1 stuck")
    assert browser_page.locator("main img").count() == 0

    browser_page.get_by_label("Filter").fill("t_17")
    expect(buttons).to_have_count(10)
    browser_page.get_by_label("Order").focus()
    browser_page.keyboard.press("Tab")
    browser_page.keyboard.press("Enter")
    expect(browser_page.locator(".details")).to_have_count(1)
    expect(buttons.first).to_be_focused()
    expect(buttons.first).to_have_attribute("aria-expanded", "true")
    browser_page.keyboard.press("Enter")
    expect(browser_page.locator(".details")).to_have_count(0)


@pytest.fixture
def table_without_schema(endpoints) -> Iterator[None]:
    """A row that the ledger itself never writes; whatever reads all specs does not meet it."""
    name = f"no_schema_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(endpoints.postgres, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO harness.tables (namespace, name, spec, cluster_id, topic, topic_id) "
            "VALUES ('cli', %s, '{}', 'c', 't', '')",
            [name],
        )
        yield
        owner.execute("DELETE FROM harness.tables WHERE namespace = 'cli' AND name = %s", [name])


@pytest.mark.usefixtures("table_without_schema")
def test_a_look_at_all_tables_is_one_statement_however_many_there_are(harness, table, monkeypatch):
    asked: Counter[str] = Counter()
    rows = Database.rows

    def counted(database, name, parameters=None):
        asked[name] += 1
        return rows(database, name, parameters)

    with hp.connect(home=harness.home) as opened:
        facts = Facts(opened)
        facts.status(None, sees=everything)
        monkeypatch.setattr("harness_pipelines.serve.page.content.SHARED_S", 0.0)
        monkeypatch.setattr("harness_pipelines.serve.page.content.SLOW_S", 3600.0)  # on a busy machine too
        monkeypatch.setattr(Database, "rows", counted)
        found = [facts.status(None, sees=everything) for _ in range(3)][-1]
        facts.close()

    assert {name: many for name, many in asked.items() if name != "overview/partitions"} == {"watch/work": 3}
    assert table in {line["table"] for line in found["tables"]}
    assert found["open"] is None


def test_browsers_that_ask_at_the_same_time_share_one_look(harness, table, monkeypatch):
    monkeypatch.setattr("harness_pipelines.serve.page.content.SHARED_S", 3600.0)
    with hp.connect(home=harness.home) as opened:
        facts = Facts(opened)
        first, second = facts.status(table, sees=everything), facts.status(table, sees=everything)
        facts.close()

    assert first["at"] == second["at"]
    assert first["open"] is second["open"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_page_is_only_read(page_url, method):
    assert answer(f"{page_url}/api/status", method=method)[0] == 405


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(page_url, host, code):
    assert answer(f"{page_url}/page.js", Host=host)[0] == code


def test_no_script_but_the_page_s_own_may_run(page_url):
    with urlopen(page_url, timeout=DEADLINE_S) as found:
        assert "script-src 'self'" in found.headers["content-security-policy"]
        assert "http" not in found.read().decode(), "something is loaded from elsewhere"
    assert answer(f"{page_url}/nothing")[0] == 401, "all else is the catalog's"


def test_a_table_that_is_not_there_is_named_and_the_others_are_shown(page_url, table):
    found = json.loads(answer(f"{page_url}/api/status?table=no.such")[1])

    assert "no.such" in found["open"]["trouble"]
    assert table in {line["table"] for line in found["tables"]}


@pytest.mark.long
def test_serve_shows_the_page_until_ctrl_c(harness, table):
    process = harness.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["page"]
        code, found = answer(f"{url}api/status?table={table}")
        process.send_signal(signal.SIGINT)
        ended = process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.communicate()

    assert code == 200
    assert json.loads(found)["open"]["lag"]["buffer"] == GOOD + 1
    assert ended == 130
