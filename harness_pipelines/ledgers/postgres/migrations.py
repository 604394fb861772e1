"""Migrations of the ledger: they are applied by `harness init`, and every first session compares them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from math import inf

import psycopg
from psycopg.rows import DictRow

from harness_pipelines.drivers.postgres import (
    WORKER,
    Connection,
    Database,
    NotInitialised,
    check_direct,
    explained,
    sql,
)
from harness_pipelines.drivers.postgres_session import session_dsn

_TAKEN = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateFunction,
    psycopg.errors.DuplicateSchema,
)
_MIGRATIONS = files("harness_pipelines.ledgers.postgres") / "sql" / "migrations"


def ledger_database(dsn: str, *, role: str | None = WORKER, size: int = 8) -> Database:
    """Sessions of a ledger that is of this harness. Raises, at the first one: NotInitialised."""
    return Database(dsn, role=role, size=size, check=check_fits)


def migrations() -> list[tuple[int, str, str]]:
    """All migrations of this harness as (number, name, SQL text), in order."""
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in _MIGRATIONS.iterdir())
    return [(int(name[:4]), name.removesuffix(".sql"), text) for name, text in found if name.endswith(".sql")]


def migrate(dsn: str) -> list[str]:
    """Bring the database to this harness's state; returns the names of the migrations that were applied.

    All in one transaction under an advisory lock, so two `harness init` at once do it once. A migration may rewrite
    a table of millions of rows, so neither the server nor this side ends it after a time; a lock is waited for as
    ever.

    Raises: NotInitialised when the database is newer than this harness, a migration was edited, or a name is taken.
    """
    with explained(dsn), Connection.of(session_dsn(dsn, role=None)) as connection:
        check_direct(connection, dsn=dsn, role=None)
        connection.execute(sql("init/lock"))
        connection.execute(sql("init/without_limit"))
        connection.deadline_s = inf
        connection.execute(sql("init/create_migrations"))
        missing = _not_applied(connection, migrations())
        for number, name, text in missing:  # a number that was left free may come after higher ones
            try:
                connection.execute(text)
            except _TAKEN as error:
                raise NotInitialised(
                    f"the database {connection.info.dbname} already has an object that the ledger would create "
                    f"({error.diag.message_primary}), for example from an Iceberg JDBC catalog; nothing was changed. "
                    "Name a separate database in HARNESS_DSN"
                ) from error
            connection.execute(sql("init/record"), {"number": number, "name": name, "digest": _digest(text)})
        return [name for _, name, _ in missing]


def check_fits(connection: psycopg.Connection[DictRow]) -> None:
    """The ledger has the migrations of this harness, all and no others. Raises: NotInitialised; UndefinedTable."""
    try:
        missing = _not_applied(connection, migrations())
    except psycopg.errors.InsufficientPrivilege as error:  # the right to look came with this check
        raise NotInitialised(
            f"the ledger was made by an older harness, or restored without its grants ({error}); nothing was changed. "
            "Stop all workers, then run `harness init`"
        ) from error
    if missing:
        raise NotInitialised(
            f"the ledger was made by an older harness: it lacks migrations {[number for number, _, _ in missing]}; "
            "nothing was changed. Stop all workers, then run `harness init`"
        )


def _not_applied(
    connection: psycopg.Connection[DictRow], known: Sequence[tuple[int, str, str]]
) -> list[tuple[int, str, str]]:
    """Those of *known* that the ledger does not have. Raises: NotInitialised when it has others, or an edited one."""
    done = {row["number"]: row["digest"] for row in connection.execute(sql("init/applied"))}
    if unknown := sorted(set(done) - {number for number, _, _ in known}):
        raise NotInitialised(
            f"the ledger has migrations {unknown} that this harness does not know: it was made by a newer "
            "harness; nothing was changed, install that version"
        )
    for number, name, text in known:
        if done.get(number, _digest(text)) != _digest(text):
            raise NotInitialised(f"migration {name} differs from the one that was applied; nothing was changed")
    return [one for one in known if one[0] not in done]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
