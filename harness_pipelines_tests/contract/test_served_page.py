"""The status page over a real ledger: a reader's login serves it, and each token sees its tables alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.ledgers.postgres.tokens import Tokens
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.serve.app import Application
from harness_pipelines.serve.auth import KNOWN_S, KnownTokens, LedgerTokens
from harness_pipelines.serve.page.content import Facts, everything
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, RealRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.served import MemoryCatalog

OWN = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def reader(real: RealRig, tmp_path: Path) -> Iterator[hp.Harness]:
    """An installation opened with a login that is a reader alone."""
    name = f"login_{uuid.uuid4().hex[:8]}"
    statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE harness_reader")
    with psycopg.connect(real.dsn, autocommit=True) as owner:
        owner.execute(statement.format(sql.Identifier(name), sql.Literal(name)))
        dsn = make_conninfo(real.dsn, user=name, password=name)
        warehouse = real.lake.warehouse  # type: ignore[attr-defined]
        with hp.Harness(Stores(Settings(home=tmp_path, dsn=dsn, warehouse=warehouse, catalog_name=CATALOG))) as opened:
            yield opened
        owner.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
        owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def mine(real: RealRig) -> TableRow:
    row = real.table(files=True)
    real.ingest(row, {0: (0, 5)})
    return row


def test_a_login_by_a_token_shows_its_tables_until_it_is_revoked(real: RealRig, reader: hp.Harness, mine: TableRow):
    other, now = real.table(files=True), [0.0]
    books = Tokens(lambda: real.readers, lambda: real.database)
    made = books.create(f"t{uuid.uuid4().hex[:8]}", [mine.name], lasts=HOUR)
    with closing(Facts(reader)) as facts:
        known = KnownTokens(LedgerTokens(reader.stores.tokens.check), clock=lambda: now[0])
        served = Application(MemoryCatalog({}), known, local_only=False, facts=facts)
        client = TestClient(served, base_url="https://serve.example", follow_redirects=False)
        assert client.post("/login", data={"token": made.secret[:-1]}, headers=OWN).status_code == 403
        assert client.post("/login", data={"token": made.secret}, headers=OWN).status_code == 303

        answer = client.get("/api/status", params={"table": mine.name})
        found = answer.json()
        assert answer.status_code == 200, answer.text
        assert [line["table"] for line in found["tables"]] == [mine.name]
        assert (found["reader"], found["open"]["lag"]["buffer"]) == (made.token.name, 5)
        assert other.name not in answer.text

        hidden = client.get("/api/status", params={"table": other.name}).json()["open"]
        missing = client.get("/api/status", params={"table": "no.such"}).json()["open"]
        assert hidden == {one: text.replace("no.such", other.name) for one, text in missing.items()}

        books.revoke(made.token.name)
        now[0] += KNOWN_S
        assert client.get("/api/status").status_code == 401


def test_a_server_without_kafka_names_the_setting_that_it_lacks(reader: hp.Harness, mine: TableRow):
    with closing(Facts(reader)) as facts:
        wait_until(lambda: facts.status(mine.name, sees=everything)["kafka"] is not None, "the end is asked for")
        wait_until(
            lambda: "HARNESS_KAFKA" in str(facts.status(mine.name, sees=everything)["open"]["notices"]),
            "the details of a table say it, too",
        )
        found = facts.status(mine.name, sees=everything)
        assert "HARNESS_KAFKA is not set here" in found["kafka"]
        assert found["tables"][0]["tail"] is None
        assert found["open"]["lag"]["tail"] is None


def test_the_page_shows_the_tables_that_the_server_serves(real: RealRig, reader: hp.Harness, mine: TableRow):
    other = real.table(files=True)
    with closing(Facts(reader, globs=[other.name])) as facts:
        found = facts.status(mine.name, sees=everything)
        assert [line["table"] for line in found["tables"]] == [other.name]
        assert "There is no table" in found["open"]["trouble"]
        assert facts.status(other.name, sees=everything)["open"]["lag"]["buffer"] == 0
