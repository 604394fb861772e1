"""Which tests run which statement, and one statement broken while tests run: by the loader of SQL, in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import FrameType
from typing import Any, LiteralString

import psycopg

from harness_pipelines.drivers import postgres
from harness_pipelines_tests.bench.mutation import functions
from harness_pipelines_tests.bench.mutation.plan import Mutant

_PACKAGE = "harness_pipelines."
#: Those who ask for another one; what the frame of the boundary commit runs is asked for by the act.
_PASS_ON = frozenset({"_run", "_one", "_rows", "sql", "run", "rows", "check_held", "_locked"})
_FRAMES = ("BoundaryFrame.", "SharedCatalog.")


class Watch:
    """Stands in for the loader while a session of tests runs."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()  #: (statement, caller) since somebody emptied it
        self._mutant: Mutant | None = None
        self._loaded = postgres.sections

    @property
    def mutant(self) -> Mutant | None:
        """What is broken now."""
        return self._mutant

    @mutant.setter
    def mutant(self, mutant: Mutant | None) -> None:
        self._mutant = mutant
        _forget_statements()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every statement is asked for through this."""
        execute = psycopg.Connection.execute
        watch = self

        def asked(connection: Any, query: Any, *args: Any, **named: Any) -> Any:
            mutant = watch.mutant
            if isinstance(query, str):  # a test may call a function itself
                watch.seen |= functions.statements(functions.called(query))
            if mutant is None or mutant.kind != "count" or query is not mutant.text:
                return execute(connection, query, *args, **named)
            connection.cursor_factory = _OneRow
            try:
                return execute(connection, query, *args, **named)
            finally:
                connection.cursor_factory = psycopg.Cursor

        postgres.sections = lambda source: _Section(watch, source, watch._loaded(source))  # type: ignore[assignment]
        psycopg.Connection.execute = asked  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            postgres.sections = watch._loaded
            psycopg.Connection.execute = execute  # type: ignore[method-assign]

    def text(self, statement: str, was: LiteralString) -> LiteralString:
        """What is sent for *statement*: what a test itself asks for is never broken."""
        caller = _caller(sys._getframe(3))
        if caller is None:
            return was
        self.seen |= {(statement, caller), *functions.statements(functions.called(was))}
        mutant = self.mutant
        if mutant is None or mutant.statement != statement or mutant.caller not in {None, caller}:
            return was
        return mutant.text


class _Section(dict[str, LiteralString]):
    def __init__(self, watch: Watch, source: str, texts: Mapping[str, LiteralString]) -> None:
        super().__init__(texts)
        self._watch, self._source = watch, source

    def __getitem__(self, section: str) -> LiteralString:
        return self._watch.text(f"{self._source}/{section}", super().__getitem__(section))


class _OneRow(psycopg.Cursor[Any]):
    """Says that one row was touched, whatever happened."""

    @property
    def rowcount(self) -> int:
        return 1


def _forget_statements() -> None:
    """Let the package ask again for statements that it has put together before and keeps in a cache."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]
    for one in {id(one): one for module in modules for one in vars(module).values()}.values():
        if isinstance(one, _lru_cache_wrapper):
            one.cache_clear()


def _caller(frame: FrameType | None) -> str | None:
    """The function of the package that wants the statement; ``None``: a test does."""
    while frame is not None and _passes_on(frame):
        frame = frame.f_back
    if frame is None:
        return None
    module = _module(frame)
    return f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_qualname}" if module.startswith(_PACKAGE) else None


def _passes_on(frame: FrameType) -> bool:
    """What stands behind a `yield` runs for whoever has the block, a step of the frame for the act."""
    code = frame.f_code
    return code.co_name in _PASS_ON or code.co_qualname.startswith(_FRAMES) or _module(frame) == "contextlib"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
