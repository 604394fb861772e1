"""The reader by `harness serve`: it reads as any engine of Iceberg does, and each read is checked as all others are.

What it reads again are cuts that it loaded before: they have the same rows as long as their files stay.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.chaos.content import READ
from harness_pipelines.chaos.processes import stop_with_parent
from harness_pipelines.chaos.reader import Cut, Reader, Watched, fingerprint, watched_in
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.lakes.iceberg.catalogs.visit import LoadedTable, Visitor
from harness_pipelines.protocol.cuts import bounds_of_json
from harness_pipelines.show.logs import configure_logging

KEEP_S = 60.0  #: of the server: expire takes the files of cuts all the time
BEHIND_S = 0.2  #: a cut may be given out for as long after its look
_REMEMBERED_MAX = 4  #: cuts of a table


def cut_of(loaded: LoadedTable) -> Cut:
    """What a table shows, as its snapshot says."""
    bounds = bounds_of_json(orjson.loads(loaded.summary["harness.bounds"]))
    return Cut(
        version=int(loaded.summary["harness.version"]),
        stream={p: stream_hi for p, (_, _, stream_hi, _) in bounds.items()},
        buffer={p: high for p, (_, _, _, high) in bounds.items()},
    )


class CatalogAway(TryAgain):
    """`harness serve` does not answer, or asks to come again."""

    way_on = "wait until the server is started again"


class CatalogFailed(HarnessError):
    """The answer of `harness serve` is neither a table nor that it is away."""

    way_on = "read the log of the server"


class ServedReader(Reader):
    """Reads by the catalog of a server. It must show what Postgres showed `BEHIND_S` before."""

    def __init__(
        self, harness: hp.Harness, watched: Iterable[Watched], *, visitor: Visitor, stopping: threading.Event
    ) -> None:
        super().__init__(harness, watched, engine="served", stopping=stopping, behind_s=BEHIND_S)
        self._visitor = visitor
        self._cuts: dict[str, deque[tuple[float, LoadedTable, str]]] = {}  #: {table: when, what, its fingerprint}

    def _head(self, table: hp.Table) -> tuple[Cut, pa.Table]:
        began = time.monotonic()
        loaded = self._load(table.name)
        rows = loaded.rows(READ)
        known = self._cuts.setdefault(table.name, deque(maxlen=_REMEMBERED_MAX))
        known.append((began, loaded, fingerprint(rows)))
        return cut_of(loaded), rows

    def _load(self, name: str) -> LoadedTable:
        """Raises: CatalogAway, CatalogFailed."""
        try:
            return self._visitor.load(name)
        except ConnectionError as away:
            raise CatalogAway(str(away)) from away
        except LookupError as refused:
            raise CatalogFailed(str(refused)) from refused

    def _again(self, table: hp.Table, one: Watched, *, head: int) -> str | None:
        """Read one of the last cuts once more; and note what the next one must show at least."""
        known = self._cuts[table.name]
        assert one.newest is not None, "its head was read"
        there, ends = {p.partition: p.bounds.buffer_hi for p in table.positions()}, one.newest.buffer
        one.newest = replace(one.newest, buffer={p: max(ends.get(p, 0), there.get(p, 0)) for p in {*ends, *there}})
        while known and time.monotonic() - known[0][0] > KEEP_S / 2:  # a read may take as long
            known.popleft()
        if not known:
            return None
        _, loaded, before = self._dice.choice(known)
        found = fingerprint(loaded.rows(READ))
        return None if found == before else f"the cut {cut_of(loaded)} has other rows than before"


def main() -> None:
    url, token, first, folder, crowd = sys.argv[1:]
    stopping = stop_with_parent()
    configure_logging()
    with hp.connect() as harness:
        watched = watched_in(Path(folder), first, int(crowd))
        ServedReader(harness, watched, visitor=Visitor(url, token), stopping=stopping).run()


if __name__ == "__main__":
    main()
