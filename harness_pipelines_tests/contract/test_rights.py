"""Each login gets what its role was given, by no known way more; a worker's objects are no traps for others."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

import harness_pipelines
from harness_pipelines.drivers.postgres import SPARK
from harness_pipelines.ledgers.postgres.migrations import migrate, migrations
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.rights import matrix, on_the_page, page_table

LOGINS = ("harness_reader", "harness_consumer", "harness_worker", "harness_spark")
Login = Callable[[str], psycopg.Connection]
SEGMENT = "seg_900000000_1"  #: of a number that no table of this database gets
PACKAGE = Path(harness_pipelines.__file__).parent


@pytest.fixture
def login(real: RealRig) -> Iterator[Login]:
    """A session of a login that is a member of one role alone."""
    opened: dict[str, psycopg.Connection] = {}

    def make(role: str) -> psycopg.Connection:
        name = f"login_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(real.dsn, autocommit=True) as owner:
            owner.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                    sql.Identifier(name), sql.Literal(name), sql.Identifier(role)
                )
            )
        opened[name] = psycopg.connect(make_conninfo(real.dsn, user=name, password=name), autocommit=True)
        return opened[name]

    yield make
    with psycopg.connect(real.dsn, autocommit=True) as owner:
        for name, connection in opened.items():
            connection.close()
            owner.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def segment(real: RealRig, login: Login) -> Iterator[str]:
    """One that a worker made."""
    columns = '[["_kafka_partition", "integer NOT NULL"], ["_kafka_offset", "bigint NOT NULL"], ["a", "text"]]'
    login("harness_worker").execute("SELECT harness.segment_make(%s, %s::jsonb)", [SEGMENT, columns])
    yield SEGMENT
    real.ask(f"DROP TABLE IF EXISTS harness_buffer.{SEGMENT}")


def test_the_page_shows_what_each_role_may_do(real: RealRig):
    with psycopg.connect(real.dsn) as connection:
        assert page_table(matrix(connection)) == on_the_page()


def test_no_role_changes_what_is_append_only_or_reaches_beyond_its_own(real: RealRig):
    with psycopg.connect(real.dsn) as connection:
        found = matrix(connection)
    for name in ("versions", "corrections", "outbox"):
        for role in LOGINS:
            assert set(found[f"harness.{name}"][role].split(", ")) <= {"", "SELECT", "INSERT"}, (name, role)
    for name, rights in found.items():
        for role in ("harness_reader", "harness_consumer"):
            assert not name.startswith("schema") or rights[role] == "USAGE"
            assert rights[role] in {"", "SELECT", "USAGE", "EXECUTE"}, (name, role)
        for role in LOGINS:
            assert not {"TRUNCATE", "REFERENCES", "TRIGGER", "CREATE"} & set(rights[role].split(", ")), (name, role)
    seen_by_spark = {name for name, rights in found.items() if rights["harness_spark"]}
    assert seen_by_spark == {
        "schema harness", "schema harness_buffer", "schema public", "harness.require_lease(), definer",
        "public.iceberg_namespace_properties", "public.iceberg_tables",
    }  # fmt: skip


#: Each of them would give a login more than its role has. {me} is the login, {segment} a segment that a worker made.
ESCALATIONS = (
    # becoming somebody else
    "SET ROLE {owner}",
    "SET ROLE harness_definer",
    "SET SESSION AUTHORIZATION {owner}",
    "ALTER ROLE {me} SUPERUSER",
    "ALTER ROLE {me} CREATEROLE",
    "ALTER ROLE {me} BYPASSRLS",
    "ALTER ROLE {owner} PASSWORD 'x'",
    "ALTER ROLE harness_worker SET search_path = pg_temp",
    "ALTER ROLE {owner} SET session_preload_libraries = 'x'",
    "ALTER DATABASE {database} SET search_path = pg_temp",
    "GRANT harness_definer TO {me}",
    "GRANT {owner} TO {me}",
    "GRANT pg_read_all_data TO {me}",
    "GRANT pg_execute_server_program TO {me}",
    "CREATE ROLE another LOGIN",
    "CREATE DATABASE another",
    "SELECT setval('harness.moves_move_id_seq', 1)",
    # objects that others would find
    "CREATE SCHEMA mine",
    "CREATE TABLE public.mine (a int)",
    "CREATE TABLE harness.mine (a int)",
    "CREATE TABLE harness_buffer.mine (a int)",
    "CREATE VIEW harness_buffer.mine AS SELECT 1",
    "CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "CREATE FUNCTION harness.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION harness_buffer.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OPERATOR harness_buffer.= (LEFTARG = text, RIGHTARG = int4, FUNCTION = pg_catalog.texteq)",
    "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = int4, FUNCTION = pg_catalog.texteq)",
    "CREATE CAST (text AS int4) WITH INOUT AS IMPLICIT",
    "CREATE DOMAIN public.text AS pg_catalog.text",
    "CREATE DOMAIN harness_buffer.text AS pg_catalog.text",
    "CREATE TYPE harness.mine AS (a int)",
    "CREATE SEQUENCE harness_buffer.mine",
    "CREATE COLLATION public.mine FROM \"C\"",
    "CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION file_fdw",
    "CREATE FOREIGN DATA WRAPPER mine",
    "CREATE PUBLICATION mine FOR ALL TABLES",
    "CREATE SUBSCRIPTION mine CONNECTION 'dbname=x' PUBLICATION x",
    "CREATE LANGUAGE plpython3u",
    "CREATE TABLESPACE mine LOCATION '/'",
    # what hangs on the ledger's and the buffer's tables
    "CREATE TRIGGER mine BEFORE INSERT ON harness_buffer.{segment} FOR EACH ROW "
    "EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "CREATE TRIGGER mine BEFORE UPDATE ON harness.tables FOR EACH ROW "
    "EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "CREATE TRIGGER mine BEFORE UPDATE ON public.iceberg_tables FOR EACH ROW "
    "EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "CREATE RULE mine AS ON INSERT TO harness_buffer.{segment} DO ALSO NOTHING",
    "CREATE RULE mine AS ON UPDATE TO harness.moves DO ALSO NOTHING",
    "CREATE POLICY mine ON harness_buffer.{segment} USING (true)",
    "ALTER TABLE harness_buffer.{segment} ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE harness_buffer.{segment} OWNER TO {me}",
    "ALTER TABLE harness_buffer.{segment} ADD COLUMN mine int DEFAULT 1",
    "ALTER TABLE harness_buffer.{segment} ALTER COLUMN a SET DEFAULT 'x'",
    "CREATE INDEX mine ON harness_buffer.{segment} (lower(a))",
    "CREATE STATISTICS harness_buffer.mine ON a, _kafka_offset FROM harness_buffer.{segment}",
    "CREATE TEMP TABLE child () INHERITS (harness_buffer.{segment})",
    "DROP TABLE harness_buffer.{segment}",
    "TRUNCATE harness_buffer.{segment}",
    "UPDATE harness_buffer.{segment} SET a = 'x'",
    "DELETE FROM harness_buffer.{segment}",
    "ALTER FUNCTION harness.require_lease SECURITY INVOKER",
    "ALTER DEFAULT PRIVILEGES FOR ROLE harness_definer GRANT ALL ON TABLES TO PUBLIC",
    "ALTER TABLE harness.versions DISABLE TRIGGER ALL",
    "SET session_replication_role = replica",
    # append-only and identity
    "DELETE FROM harness.versions",
    "UPDATE harness.versions SET stream_snapshot = 0",
    "UPDATE harness.outbox SET payload = '{{}}'",
    "UPDATE harness.ledger SET ledger_id = gen_random_uuid()",
    "DELETE FROM harness.tables",
    "DELETE FROM harness.moves",
    "INSERT INTO public.harness_migrations VALUES (9999, 'x', 'x')",
    # the server's files and programs
    "COPY (SELECT 1) TO '/dev/null'",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "CREATE TEMP TABLE t (a text); COPY t FROM PROGRAM 'true'",
    "CREATE TEMP TABLE t (a text); COPY t FROM '/etc/hostname'",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT pg_ls_dir('.')",
    "SELECT lo_import('/etc/hostname')",
    "SELECT lo_export(0, '/dev/null')",
    "SELECT pg_reload_conf()",
    "SELECT pg_switch_wal()",
    "ALTER SYSTEM SET work_mem = '1MB'",
    "SELECT pg_authid.rolpassword FROM pg_authid",
    "SELECT query_to_xml('SELECT * FROM pg_authid', true, true, '')",
    "LOAD 'plpgsql'",
)  # fmt: skip


@pytest.mark.parametrize("role", LOGINS)
def test_no_known_way_gives_a_login_more(real: RealRig, login: Login, segment: str, role: str):
    session, place = login(role), conninfo_to_dict(real.dsn)
    words = {"owner": place["user"], "me": session.info.user, "database": place["dbname"], "segment": segment}
    succeeded = []
    for statement in ESCALATIONS:
        with session.transaction(force_rollback=True):
            try:
                with session.transaction():
                    session.execute(statement.format(**words).encode())
                succeeded.append(statement)
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
                pass
            except psycopg.errors.UndefinedFile:  # an extension or language that the server does not have
                assert statement.startswith(("CREATE EXTENSION", "CREATE LANGUAGE")), statement
            except (psycopg.errors.ActiveSqlTransaction, psycopg.errors.ObjectNotInPrerequisiteState):
                assert statement.startswith(("CREATE", "ALTER SYSTEM")), statement
    assert succeeded == []


@pytest.mark.parametrize("role", LOGINS)
def test_a_set_role_of_its_session_leads_no_further(login: Login, role: str):
    """What a session begins with is undone by these; the login itself has no more."""
    session = login(role)
    for way in ("SET ROLE NONE", "RESET ROLE", "RESET SESSION AUTHORIZATION", "RESET ALL", "DISCARD ALL"):
        session.execute(way.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("DELETE FROM harness.versions")


WORKERS_CALLS = (
    ("SELECT harness.segment_make('pg_class', '[]')", "is no name of a segment"),
    ("SELECT harness.segment_make('seg_1_1; DROP TABLE x', '[]')", "is no name of a segment"),
    ("""SELECT harness.segment_make('seg_900000000_2', '[["a", "public.mine"]]')""", "is no type of a segment"),
    ("""SELECT harness.segment_make('seg_900000000_2', '[["a", "text DEFAULT now()"]]')""", "is no type of a segment"),
    ("""SELECT harness.segment_make('seg_900000000_2', '[["a", "text, b text"]]')""", "is no type of a segment"),
    ("SELECT harness.segment_index('seg_900000000_1', 'key', 'gin', '{a}')", "is no index of a segment"),
    ("SELECT harness.segment_index('seg_900000000_1', 'mine', 'btree', '{a}')", "is no index of a segment"),
    ("SELECT harness.segment_index('seg_900000000_1', 'key', 'btree', '{lower(a)}')", "does not exist"),
    ("SELECT harness.segment_statistics('tables', '{spec}')", "is no name of a segment"),
    ("SELECT harness.segment_drop('../harness.tables')", "is no name of a segment"),
)


@pytest.mark.parametrize(("call", "refused"), WORKERS_CALLS)
def test_a_worker_makes_and_drops_segments_and_nothing_else(login: Login, segment: str, call: str, refused: str):
    with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedColumn), match=refused):
        login("harness_worker").execute(call.encode())


_WRITES = (
    ("INSERT", re.compile(r"INSERT INTO ([\w.]+)")),
    ("UPDATE", re.compile(r"UPDATE ((?:harness|public)\.\w+)")),
    ("DELETE", re.compile(r"DELETE FROM ([\w.]+)")),
)
OWNERS = ("drop", "init")  #: statements of commands that the owner of the database runs


def test_a_worker_may_write_every_table_that_a_statement_of_its_writes(real: RealRig):
    texts = {
        path.stem: path.read_text(encoding="utf-8") for path in PACKAGE.glob("*/*/sql/*.sql") if path.stem not in OWNERS
    }
    assert len(texts) > 15
    lacks = set()
    for name, text in texts.items():
        statements = re.sub(r"--.*", "", text)
        for right, pattern in _WRITES:
            for table in set(pattern.findall(statements)):
                asked = "has_any_column_privilege" if right != "DELETE" else "has_table_privilege"
                [row] = real.ask(f"SELECT {asked}('harness_worker', '{table}', '{right}') AS may")
                if not row["may"]:
                    lacks.add((name, right, table))
    assert lacks == set()


def test_a_worker_may_raise_the_numbers_of_moves_and_not_lower_them(login: Login):
    session = login("harness_worker")
    given = [session.execute("SELECT harness.raise_move_ids(1)").fetchone() for _ in range(2)]
    assert given[0] is not None
    assert given[1] is not None
    assert given[0][0] < given[1][0]


def test_a_name_of_a_column_is_only_a_name(real: RealRig, login: Login, segment: str):
    columns = '[["a\\" text); DROP TABLE harness_buffer.seg_900000000_1; --", "text"]]'
    login("harness_worker").execute("SELECT harness.segment_make('seg_900000000_2', %s::jsonb)", [columns])
    assert real.ask("SELECT to_regclass('harness_buffer.seg_900000000_1') IS NOT NULL AS there") == [{"there": True}]
    real.ask("DROP TABLE harness_buffer.seg_900000000_2")


def test_a_segment_in_use_is_not_dropped(real: RealRig, login: Login):
    table = real.table()
    name = real.segments.open_segment(table).name
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is not retired"):
        login("harness_worker").execute("SELECT harness.segment_drop(%s)", [name])


@pytest.mark.parametrize("role", LOGINS)
def test_a_login_gives_nobody_what_is_not_its_own(login: Login, segment: str, role: str):
    """Postgres only warns where nothing was granted."""
    session = login(role)
    with session.transaction(force_rollback=True):
        for name in ("public.iceberg_tables", f"harness_buffer.{segment}"):
            session.execute(f"GRANT SELECT ON {name} TO harness_consumer WITH GRANT OPTION".encode())
            session.execute(f"GRANT ALL ON {name} TO PUBLIC".encode())
            found = session.execute(
                "SELECT FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = %s::regclass AND a.grantee = 0", [name]
            )
            assert found.fetchall() == []


def test_spark_reads_segments_under_a_lease_and_moves_pointers(real: RealRig, login: Login, segment: str):
    spark = login(SPARK)
    spark.execute(f"SELECT * FROM harness_buffer.{segment}".encode())
    spark.execute("UPDATE public.iceberg_tables SET metadata_location = metadata_location WHERE table_name = ''")
    with pytest.raises(psycopg.Error, match="lease .* has ended"):
        spark.execute("SELECT harness.require_lease(gen_random_uuid())")
    for refused in (
        "DELETE FROM public.iceberg_tables", "INSERT INTO public.iceberg_tables (catalog_name) VALUES ('x')",
        "UPDATE public.iceberg_tables SET table_name = 'x'", "SELECT * FROM harness.leases",
        f"INSERT INTO harness_buffer.{segment} VALUES (0, 0, 'x')",
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            spark.execute(refused.encode())


# -- a database of an older harness --------------------------------------------------------------------------------


@pytest.fixture
def older(make_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger from before segments were the database's own, with one that a worker owns."""
    dsn, known = make_database(), migrations()
    before = [one for one in known if one[0] < next(number for number, name, _ in known if name.endswith("_logins"))]
    with monkeypatch.context() as patch:
        patch.setattr("harness_pipelines.ledgers.postgres.migrations.migrations", lambda: before)
        migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET ROLE harness_worker")
        connection.execute("CREATE TABLE harness_buffer.seg_1_1 (_kafka_offset bigint NOT NULL, a text)")
        connection.execute("INSERT INTO harness_buffer.seg_1_1 VALUES (7, 'kept')")
        connection.execute("CREATE INDEX seg_1_1_coordinates ON harness_buffer.seg_1_1 (_kafka_offset)")
    return dsn


def test_an_older_ledger_keeps_its_segments_which_are_no_workers_own_any_more(older: str):
    migrate(older)
    with psycopg.connect(older, autocommit=True) as connection:
        owner = connection.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'seg_1_1'").fetchone()
        assert owner == ("harness_definer",)
        for role in ("harness_reader", "harness_worker", "harness_spark"):
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            assert connection.execute("SELECT a FROM harness_buffer.seg_1_1").fetchall() == [("kept",)]


TRAPS = (
    "CREATE FUNCTION harness_buffer.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER trap BEFORE INSERT ON harness_buffer.seg_1_1 FOR EACH ROW "
    "EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "CREATE RULE trap AS ON INSERT TO harness_buffer.seg_1_1 DO ALSO NOTHING",
    "CREATE POLICY trap ON harness_buffer.seg_1_1 USING (true)",
    "CREATE INDEX trap ON harness_buffer.seg_1_1 (lower(a))",
    "CREATE VIEW harness_buffer.trap AS SELECT 1",
    "CREATE DOMAIN harness_buffer.trap AS text",
    "ALTER TABLE harness_buffer.seg_1_1 ALTER COLUMN a SET DEFAULT lower('x')",
    "ALTER TABLE harness_buffer.seg_1_1 ADD CONSTRAINT trap CHECK (a <> lower('x'))",
    "CREATE TABLE harness_buffer.trap () INHERITS (harness_buffer.seg_1_1)",
)


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_worker_once_hung_on_a_segment_stops_the_upgrade_by_name(older: str, trap: str):
    with psycopg.connect(older, autocommit=True) as connection:
        connection.execute("SET ROLE harness_worker")
        connection.execute(trap.encode())
    with pytest.raises(psycopg.errors.RaiseException, match="is no segment of the harness: .*(trap|default|child)"):
        migrate(older)
    with psycopg.connect(older) as connection:
        assert connection.execute("SELECT to_regprocedure('harness.segment_drop(text)')").fetchone() == (None,)


def test_a_reader_renews_and_ends_its_own_leases_and_a_worker_those_of_all(real: RealRig, login: Login):
    table = real.table()
    mine, somebody, worker = login("harness_reader"), login("harness_reader"), login("harness_worker")

    def ask(session: psycopg.Connection, call: str, lease: uuid.UUID) -> object:
        [found] = session.execute(f"SELECT harness.{call}", {"id": lease, "table": table.table_id}).fetchall()
        return found[0]

    take, renew = (
        "lease_take(%(id)s, %(table)s, 1, '{}', 'me', interval '1 hour')",
        "lease_renew(%(id)s, interval '2 hours')",
    )
    for owner, others in ((mine, (mine, worker)), (worker, (worker,))):
        lease = uuid.uuid4()
        ask(owner, take, lease)
        for session in (mine, somebody, worker):
            assert (ask(session, renew, lease) is not None) == (session in others)
        for last in others:
            assert ask(somebody, "lease_end(%(id)s)", lease) is None
            assert ask(last, "lease_end(%(id)s)", lease) is True
            ask(owner, take, lease)
        real.ask("DELETE FROM harness.leases WHERE lease_id = %s", [lease])


@pytest.mark.parametrize(("suffix", "kind"), [("key", "gin"), ("key", "btree (a); SELECT 1; --"), ("more", "btree")])
def test_a_segment_has_no_other_indexes_than_its_own(login: Login, segment: str, suffix: str, kind: str):
    worker = login("harness_worker")
    make = "SELECT harness.segment_index(%s, %s, %s, ARRAY['a'])"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is no index of a segment"):
        worker.execute(make, [segment, suffix, kind])
    worker.execute(make, [segment, "key", "btree"])


def test_a_worker_drops_what_was_retired_and_nothing_else(real: RealRig, login: Login):
    table, worker = real.table(), login("harness_worker")
    name = real.segments.open_segment(table).name
    overlay = f"ovl_{table.table_id}_1_1"
    worker.execute('SELECT harness.segment_make(%s, \'[["a", "text"]]\')', [overlay])
    real.ask(
        "INSERT INTO harness.overlays (segment, table_id, move_id, attempt, schema_version) "
        "SELECT %s, %s, max(move_id), 1, 1 FROM harness.moves",
        [overlay, table.table_id],
    )

    def there(one: str) -> bool:
        return bool(real.ask("SELECT 1 AS n FROM pg_class WHERE relname = %s", [one]))

    for state in ("open", "closed"):
        real.ask("UPDATE harness.segments SET state = %s WHERE segment = %s", [state, name])
        for one in (name, overlay):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is not retired"):
                worker.execute("SELECT harness.segment_drop(%s)", [one])
    real.ask("UPDATE harness.segments SET state = 'retired' WHERE segment = %s", [name])
    real.ask("UPDATE harness.overlays SET retired_at = clock_timestamp() WHERE segment = %s", [overlay])
    for one in (name, overlay):
        assert there(one)
        worker.execute("SELECT harness.segment_drop(%s)", [one])
        assert not there(one)


def test_segments_have_names_and_types_of_segments(login: Login, segment: str):
    worker = login("harness_worker")
    for wrong in ("tables", "seg_1", "seg_1_2_3", "ovl_1_1", "seg_1_1; SELECT 1"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is no name of a segment"):
            worker.execute("SELECT harness.segment_drop(%s)", [wrong])
    for wrong in ("text DEFAULT 'x'", "text, b text", "regclass", "integer UNIQUE", "serial"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is no type of a segment"):
            worker.execute("SELECT harness.segment_make('seg_900000001_1', %s)", [Jsonb([["a", wrong]])])
