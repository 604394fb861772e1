"""What each login may do with the ledger's database, and that no known trick gets it more."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harness_pipelines.chaos.proxy import TcpProxy
from harness_pipelines.drivers.adbc import AdbcSessions, cursor_of
from harness_pipelines.drivers.postgres import READER, WORKER, Database, SessionsPooled
from harness_pipelines.drivers.postgres_address import at_port, place_of
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines_tests.contract.stores_rig import RealRig

ROLES = ("harness_reader", "harness_consumer", "harness_worker")


class PoolerProxy(TcpProxy):
    """A proxy that drops the options of a session, as PgBouncer does with ``ignore_startup_parameters = options``."""

    def __init__(self, dsn: str) -> None:
        super().__init__(*place_of(dsn))
        self.dsn = at_port(dsn, self.port)

    def passed_on(self, data: bytes) -> bytes:
        version, pairs = data[4:8], data[8:].split(b"\0")
        if version != b"\0\3\0\0" or b"options" not in pairs:  # no first message of a session
            return data
        at = pairs.index(b"options")
        body = version + b"\0".join(pairs[:at] + pairs[at + 2 :])
        return (len(body) + 4).to_bytes(4, "big") + body


@pytest.fixture
def login(real: RealRig) -> Iterator[Callable[[str], str]]:
    """Makes logins, each a member of one role alone; gives their addresses."""
    made: list[sql.Identifier] = []

    def make(role: str) -> str:
        name = f"login_{uuid.uuid4().hex[:8]}"
        made.append(sql.Identifier(name))
        statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}")
        with psycopg.connect(real.dsn, autocommit=True) as connection:
            connection.execute(statement.format(made[-1], sql.Literal(name), sql.Identifier(role)))
        return make_conninfo(real.dsn, user=name, password=name)

    yield make
    with psycopg.connect(real.dsn, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
            connection.execute(sql.SQL("DROP ROLE {}").format(name))


# -- functions that run with their owner's rights --------------------------------------------------------------


def test_each_function_with_its_owners_rights_looks_up_temporary_objects_last_and_is_of_the_role_for_it(real: RealRig):
    found = real.ask(
        "SELECT p.oid::regprocedure::text AS function, p.proconfig AS settings, o.rolname AS owner, "
        "has_function_privilege('public', p.oid, 'EXECUTE') AS for_all "
        "FROM pg_proc p JOIN pg_roles o ON o.oid = p.proowner "
        "WHERE p.prosecdef AND p.pronamespace <> 'pg_catalog'::regnamespace"
    )

    assert len(found) >= 7
    for row in found:
        assert row["settings"] == ["search_path=pg_catalog, pg_temp"], row
        assert row["owner"] == "harness_definer", row
        assert row["for_all"] is False, row


def test_the_role_of_these_functions_can_neither_log_in_nor_be_taken_by_a_worker(real: RealRig):
    [role] = real.ask(
        "SELECT rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls AS more, "
        "pg_has_role('harness_worker', oid, 'MEMBER') AS worker, "
        "pg_has_role('harness_consumer', oid, 'MEMBER') AS consumer, "
        "has_schema_privilege(oid, 'harness', 'CREATE') AS makes, "
        "(SELECT count(*) FROM pg_auth_members m WHERE m.member = r.oid) AS is_member_of "
        "FROM pg_roles r WHERE rolname = 'harness_definer'"
    )
    assert role == {"more": False, "worker": False, "consumer": False, "makes": False, "is_member_of": 0}


#: Types that the functions name; each is made in the caller's temporary schema, to run the caller's function.
SHADOWS = ("text", "int4", "int8", "uuid", "jsonb", "timestamptz", "interval", "numeric")


@pytest.mark.parametrize("shadowed", SHADOWS)
@pytest.mark.parametrize("role", ROLES)
def test_a_temporary_type_of_the_callers_never_runs_with_the_rights_of_a_function(
    real: RealRig, login: Callable[[str], str], role: str, shadowed: str
):
    table = real.table()
    name = f"{table.spec.namespace}.{table.spec.name}"
    with psycopg.connect(login(role), autocommit=True) as connection:
        # It says who runs it and does no more, so it works with any rights.
        connection.execute(
            f"CREATE FUNCTION pg_temp.seen(pg_catalog.{shadowed}) RETURNS boolean LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE WARNING 'ran as %', current_user; RETURN true; END $$".encode()
        )
        connection.execute(
            f"CREATE DOMAIN pg_temp.{shadowed} AS pg_catalog.{shadowed} CHECK (pg_temp.seen(VALUE))".encode()
        )
        said: list[str] = []
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        _call_all(connection, name, table.table_id)

    assert said == []


def _call_all(connection: psycopg.Connection, table: str, table_id: int) -> None:
    """Every function with its owner's rights; those that the login may not call are refused."""
    holder, lease, state = uuid.uuid4(), uuid.uuid4(), f"s{uuid.uuid4().hex[:8]}"
    sources = psycopg.types.json.Jsonb({table: {"0": 0}})
    calls: list[tuple[bytes, list[object]]] = [
        (b"SELECT harness.state_hold(%s, %s, '1 minute')", [state, holder]),
        (b"SELECT harness.state_renew(%s, %s, 1, '1 minute')", [state, holder]),
        (b"SELECT harness.state_commit(%s, %s, 1, '1 minute', %s, 'c')", [state, holder, sources]),
        (b"SELECT harness.state_renew(%s, %s, 1, '0')", [state, holder]),
        (b"SELECT harness.state_drop(%s)", [state]),
        (b"SELECT harness.lease_take(%s, %s, 1::bigint, '{}', 'me', '1 h')", [lease, table_id]),
        (b"SELECT harness.lease_renew(%s, '1 h')", [lease]),
        (b"SELECT harness.lease_end(%s)", [lease]),
    ]
    for statement, parameters in calls:
        try:
            connection.execute(statement, parameters)
        except psycopg.errors.InsufficientPrivilege:
            assert b"state" in statement


def test_a_consumer_does_not_become_a_superuser_by_a_temporary_type(real: RealRig, login: Callable[[str], str]):
    table = real.table()
    address = login("harness_consumer")
    me = psycopg.conninfo.conninfo_to_dict(address)["user"]
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            f"CREATE FUNCTION pg_temp.up(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS "
            f"$$ BEGIN EXECUTE 'ALTER ROLE {me} SUPERUSER'; RETURN true; END $$".encode()
        )
        connection.execute("CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.up(VALUE))")
        _call_all(connection, f"{table.spec.namespace}.{table.spec.name}", table.table_id)
    assert real.ask("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [me]) == [{"rolsuper": False}]


def test_an_owner_without_superuser_makes_the_ledger(make_database: Callable[[], str], real: RealRig):
    """Who may make roles and has a database of its own needs nothing more."""
    dsn = make_database()
    database = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
    owner = f"owner_{uuid.uuid4().hex[:8]}"
    name = sql.Identifier(owner)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}").format(name, sql.Literal(owner)))
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database), name))
        connection.execute(
            sql.SQL("GRANT harness_reader, harness_consumer, harness_worker TO {} WITH ADMIN OPTION").format(name)
        )
    try:
        assert migrate(make_conninfo(dsn, user=owner, password=owner)) != []
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(name))
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
            connection.execute(sql.SQL("DROP ROLE {}").format(name))


# -- poolers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [WORKER, READER, None])
def test_a_pooler_that_drops_what_a_session_asks_for_is_refused_by_name(real: RealRig, role: str | None):
    pooler = PoolerProxy(real.dsn)
    database = Database(pooler.dsn, role=role)
    try:
        with pytest.raises(SessionsPooled, match=r"is a pooler.*lock_timeout is 0.*address and port of the server"):
            database.rows("init/applied")
        with pytest.raises(SessionsPooled, match="nothing was written"):
            migrate(pooler.dsn)
    finally:
        database.close()
        pooler.close()


def test_a_pooler_that_comes_in_between_later_gets_no_session_either(real: RealRig):
    pooler = PoolerProxy(real.dsn)
    database = Database(real.dsn)
    try:
        with database.session() as connection:
            assert connection.execute("SELECT current_setting('role') AS role").fetchone() == {"role": WORKER}
        with (
            psycopg.connect(pooler.dsn, row_factory=psycopg.rows.dict_row) as pooled,
            pytest.raises(SessionsPooled),
        ):
            database._pool._configure(pooled)  # type: ignore[misc, arg-type]  # what the pool does with a new session
    finally:
        database.close()
        pooler.close()


#: What somebody may set for a login, and what is read or meant otherwise by it.
OTHER_WORDS = {
    "TimeZone": "Asia/Kathmandu", "DateStyle": "German, DMY", "IntervalStyle": "iso_8601", "bytea_output": "escape",
    "extra_float_digits": "-15", "standard_conforming_strings": "off", "array_nulls": "off",
    "transform_null_equals": "on", "quote_all_identifiers": "on", "default_transaction_isolation": "serializable",
    "client_encoding": "LATIN1", "search_path": "pg_temp",
}  # fmt: skip


def test_what_a_login_is_set_to_changes_no_meaning(real: RealRig, login: Callable[[str], str]):
    address = login("harness_worker")
    name = sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(address)["user"]))
    with psycopg.connect(real.dsn, autocommit=True) as owner:
        for setting, value in OTHER_WORDS.items():
            words = sql.SQL("ALTER ROLE {} SET {} = {}")
            owner.execute(words.format(name, sql.SQL(setting), sql.Literal(value)))
    moment = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
    asked = (
        "SELECT timestamptz '2026-03-04 05:06:07.000008+00' AS moment, interval '1 day' AS day, 0.1::float8 AS number, "
        "'\\x5c00'::bytea AS data, 'a\\b ü' AS words, '{NULL}'::text[] AS parts, NULL = NULL AS same"
    )
    wanted = {
        "moment": moment, "day": timedelta(days=1), "number": 0.1, "data": b"\x5c\x00", "words": "a\\b ü",
        "parts": [None], "same": None,
    }  # fmt: skip
    database = Database(address)
    try:
        with database.transaction() as connection:
            [found] = connection.execute(asked.encode()).fetchall()
            [level] = connection.execute("SHOW transaction_isolation").fetchall()
    finally:
        database.close()
    assert found == wanted
    assert level == {"transaction_isolation": "read committed"}
    sessions = AdbcSessions(address, role="harness_reader")
    try:
        session = sessions.open(autocommit=True)
        with cursor_of(session) as cursor:
            cursor.execute("SELECT oid, relname FROM pg_class LIMIT 1")
            assert cursor.fetch_arrow_table().num_rows == 1
        sessions.end(session)
    finally:
        sessions.close()
