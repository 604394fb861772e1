"""File digests recorded at writing, looked up by path."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Final, Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.lake.file_digests import Digest
from harness_pipelines.spec.locations import is_below, normal

KNOWN_MAX = 200_000


class FileNotes(Protocol):
    """The notes of one ledger."""

    @property
    def warehouse(self) -> str | None: ...

    def add(self, path: str, digest: Digest) -> None:
        """Remember what was written to *path* until the next `flush`."""

    def flush(self) -> None:
        """Note what was added."""

    def ask(self, paths: Sequence[str]) -> dict[str, Digest]:
        """What was noted of *paths*."""


class Known:
    """Notes that were looked up, by path. A path names content that never changes, so they never go stale."""

    def __init__(self) -> None:
        self._ledgers: weakref.WeakSet[FileNotes] = weakref.WeakSet()
        self._found: OrderedDict[str, Digest | None] = OrderedDict()
        self._lock = Lock()

    def bind(self, ledger: FileNotes) -> None:
        """Ask *ledger* too, for as long as it lives."""
        with self._lock:
            self._ledgers.add(ledger)

    def unbind(self, ledger: FileNotes) -> None:
        """Ask *ledger* no more: its database is closed."""
        with self._lock:
            self._ledgers.discard(ledger)

    def learn(self, paths: Iterable[str]) -> None:
        """Look up the notes of published files in one go; those without one are not asked for again."""
        missing = self._unknown([normal(path) for path in paths])
        if missing:
            self.keep(dict.fromkeys(missing) | self._asked(missing))

    def of(self, path: str) -> Digest | None:
        """The note of one file, if there is any."""
        path = normal(path)
        with self._lock:
            if path in self._found:
                return self._found[path]
        found = self._asked([path])
        self.keep(found)  # not that there is none: it may be written just now
        return found.get(path)

    def _unknown(self, paths: Iterable[str]) -> list[str]:
        with self._lock:
            return [path for path in dict.fromkeys(paths) if path not in self._found]

    def _asked(self, paths: list[str]) -> dict[str, Digest]:
        """What the ledgers of their warehouses say. Raises: what the database does, if no session of it answers."""
        with self._lock:
            ledgers = [ledger for ledger in self._ledgers if ledger.warehouse is not None]
        warehouses = {ledger.warehouse or "" for ledger in ledgers}
        found: dict[str, Digest] = {}
        for warehouse in warehouses:
            others = [other for other in warehouses if other != warehouse]
            mine = [path for path in paths if not any(is_below(path, other) for other in others)]
            if mine:  # below it, or below none: written when the warehouse was another folder
                found |= _any_of([ledger for ledger in ledgers if ledger.warehouse == warehouse], mine)
        return found

    def keep(self, found: Mapping[str, Digest | None]) -> None:
        """Remember notes by the normal form of their paths; None: there is none, and there will be none."""
        with self._lock:
            self._found.update(found)
            while len(self._found) > KNOWN_MAX:
                self._found.popitem(last=False)


def _any_of(ledgers: Sequence[FileNotes], paths: list[str]) -> dict[str, Digest]:
    """A warehouse has one ledger, so the first that answers knows all."""
    trouble: HarnessError | None = None
    for ledger in ledgers:
        try:
            return ledger.ask(paths)
        except HarnessError as error:
            trouble = error
    assert trouble is not None
    raise trouble


KNOWN: Final = Known()
