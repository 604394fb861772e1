"""What Postgres says, by the names of the harness: the same for both drivers."""

from __future__ import annotations

import adbc_driver_manager
import psycopg
import pytest
from psycopg_pool import PoolTimeout

from harness_pipelines.drivers.postgres import (
    Asked,
    LedgerBusy,
    MissingRole,
    NotInitialised,
    PostgresLoginFailed,
    PostgresReadOnly,
    PostgresUnreachable,
    SegmentMissing,
    SessionsPooled,
    explained,
    named,
)
from harness_pipelines.errors import HarnessError, TryAgain

DSN = "host=db.example port=5433 user=me password=rosebud-4711"
LEDGER, SEGMENT = 'relation "harness.moves" does not exist', 'relation "harness_buffer.seg_7_2" does not exist'


class Told(Exception):
    """An error as the Arrow driver raises it."""

    def __init__(self, sqlstate: str | None, said: str = "said") -> None:
        super().__init__(said)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "said", "kind"),
    [
        ("42P01", LEDGER, NotInitialised),
        ("42P01", SEGMENT, SegmentMissing),
        ("42501", "permission denied for table seg_7_2", MissingRole),
        ("25006", "cannot execute INSERT in a read-only transaction", PostgresReadOnly),
        ("55P03", "canceling statement due to lock timeout", LedgerBusy),
        ("57014", "canceling statement due to statement timeout", LedgerBusy),
        ("40P01", "deadlock detected", LedgerBusy),
        ("40001", "could not serialize access", LedgerBusy),
        ("57P01", "terminating connection due to administrator command", PostgresUnreachable),
        ("57P03", "the database system is starting up", PostgresUnreachable),
        ("53300", "sorry, too many clients already", PostgresUnreachable),
        ("53100", "could not extend file: No space left on device", PostgresUnreachable),
        ("25P03", "terminating connection due to idle-in-transaction timeout", PostgresUnreachable),
        ("08006", "connection failure", PostgresUnreachable),
        ("28P01", "said in another language", PostgresLoginFailed),
        (None, 'FATAL:  password authentication failed for user "reader"', PostgresLoginFailed),
        (None, 'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "reader", no encryption', PostgresLoginFailed),
        (None, "fe_sendauth: no password supplied", PostgresLoginFailed),
        (None, 'FATAL:  role "reader" is not permitted to log in', PostgresLoginFailed),
        (None, 'FATAL:  role "reader" does not exist', PostgresLoginFailed),
        (None, 'FATAL:  database "harnes" does not exist', PostgresLoginFailed),
        (None, 'FATAL:  role "harness_worker" does not exist', NotInitialised),
        (None, "server closed the connection unexpectedly", PostgresUnreachable),
        ("", "server closed the connection unexpectedly", PostgresUnreachable),
        ("\0\0\0\0\0", "server closed the connection unexpectedly", PostgresUnreachable),
    ],
)
def test_a_sqlstate_has_one_name_whichever_driver_tells_it(state: str | None, said: str, kind: type[HarnessError]):
    found = named(Told(state, said), Asked(dsn=DSN, table="shop.orders"))
    assert type(found) is kind
    if kind is not NotInitialised:
        assert str(found).startswith("shop.orders: ")
        assert said in str(found)
    assert "rosebud" not in str(found)

    if state and state.isalnum():
        error = psycopg.errors.lookup(state)(said)
        with pytest.raises(kind), explained(DSN, table="shop.orders"):
            raise error


def test_a_relation_that_the_arrow_driver_looks_up_by_itself_is_missed_without_a_sqlstate():
    told = adbc_driver_manager.ProgrammingError(
        f"NOT_FOUND: [libpq] Failed to execute query 'SELECT attr.attname': ERROR:  {SEGMENT}",
        status_code=adbc_driver_manager.AdbcStatusCode.NOT_FOUND,
    )
    assert isinstance(named(told, Asked(dsn=DSN, table="shop.orders")), SegmentMissing)


@pytest.mark.parametrize("state", ["23505", "22003", "42601", "XX002", "HP001"])
def test_what_no_outage_explains_is_left_as_it_is(state: str):
    assert named(Told(state), Asked(dsn=DSN)) is None


def test_a_driver_that_was_called_in_a_wrong_way_is_a_defect():
    with pytest.raises(psycopg.ProgrammingError, match="2 placeholders"), explained(DSN):
        raise psycopg.ProgrammingError("the query has 2 placeholders but 1 parameters were passed")


@pytest.mark.parametrize("error", [psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout])
def test_a_session_that_never_began_names_the_address_and_the_way_on(error: type[psycopg.Error]):
    said = r"Postgres at db\.example:5433 is not answering: gone; nothing was written, check HARNESS_DSN"
    with pytest.raises(PostgresUnreachable, match=said), explained(DSN):
        raise error("gone")


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  unsupported startup parameter: options",
        "FATAL:  unsupported startup parameter in options: role",
        "FATAL:  Feature not supported: RDS Proxy currently doesn't support command-line options.",
    ],
)
@pytest.mark.parametrize("state", [None, "08P01", "0A000"])
def test_a_pooler_that_refuses_a_session_is_not_taken_for_a_database_that_is_away(said: str, state: str | None):
    found = named(Told(state, said), Asked(dsn=DSN))
    assert isinstance(found, SessionsPooled)
    assert not isinstance(found, TryAgain)
    assert all(words in str(found) for words in ("db.example:5433 is a pooler", said, "the server itself"))


def test_a_missing_segment_is_named_with_its_table_and_the_way_on():
    written = named(Told("42P01", SEGMENT), Asked(dsn=DSN, table="shop.orders"))
    read = named(Told("42P01", SEGMENT), Asked(dsn=DSN, table="shop.orders", reading=("seg_7_1", "seg_7_2")))

    for wanted in ("shop.orders", "seg_7_2", "harness table drop shop.orders --yes", "--rebuild --yes"):
        assert wanted in str(written)
    assert "it named seg_7_1, seg_7_2): its lease has ended" in str(read)
    assert "nothing is returned, read again" in str(read)


@pytest.mark.parametrize(("state", "passes"), [("25006", True), ("55P03", True), ("42P01", False), ("42501", False)])
def test_what_passes_by_itself_is_tried_again(state: str, passes: bool):
    assert isinstance(named(Told(state), Asked(dsn=DSN)), TryAgain) is passes
