"""Functions inside of the database: their bodies by name, and one of them broken while a test runs.

A body is what the last migration that makes the function says. The database of the test gets the broken one by CREATE
OR REPLACE, so owner, rights and settings stay, and its own one back afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.resources import files

import psycopg

FILE = "functions"  #: stands where other statements have the name of their file
_MADE = re.compile(r"^CREATE (?:OR REPLACE )?FUNCTION harness\.(\w+)\(.*?\bAS \$\$(.*?)\$\$;", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"\bharness\.(\w+)\(")
_DEFINITION = """
SELECT pg_get_functiondef(p.oid) FROM pg_proc p
WHERE p.pronamespace = 'harness'::regnamespace AND p.proname = %s AND p.prokind = 'f'
"""


@cache
def bodies() -> Mapping[str, str]:
    """{function: its body}."""
    folder = files("harness_pipelines.ledgers.postgres") / "sql" / "migrations"
    made: dict[str, str] = {}
    for one in sorted((one for one in folder.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name):
        made |= {name: body.strip("\n") for name, body in _MADE.findall(one.read_text(encoding="utf-8"))}
    return made


@lru_cache(maxsize=4096)
def called(text: str) -> frozenset[str]:
    """The functions that *text* runs, and those that they run."""
    found: set[str] = set()
    left = set(_CALLED.findall(text)) & bodies().keys()
    while left:
        found |= left
        left = {inner for one in left for inner in _CALLED.findall(bodies()[one])} & bodies().keys() - found
    return frozenset(found)


def statements(names: Iterable[str]) -> set[tuple[str, str]]:
    """As what a test has run is noted: (statement, caller)."""
    return {(f"{FILE}/{name}", "") for name in names}


@contextmanager
def replaced(dsn: str, function: str, body: str) -> Iterator[None]:
    """The database has *body* in *function* while the block lasts."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(_DEFINITION, [function]).fetchone()
        assert found is not None, f"the database has no function {function}"
        whole = str(found[0])
        assert whole.count(bodies()[function]) == 1, f"the database has another function {function}"
        connection.execute(whole.replace(bodies()[function], body).encode())
        try:
            yield
        finally:
            connection.execute(whole.encode())
