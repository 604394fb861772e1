"""One warehouse, one ledger: a mark in the warehouse names the ledger that owns it.

Two ledgers that publish to one lake would each remove what only the other one reaches. A copy of a ledger has its id
too, so the mark also names the database that it is in. A copy of the disks has even that: so the ledger keeps an epoch,
which the mark names and a take-over replaces, and the copy that did not take over does not know it. A standby has
the epoch as well: so the mark names the timeline that Postgres writes. Of two servers of one ledger the warehouse is
that of the one which was promoted, as soon as it works, and a primary that comes back finds it taken.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.drivers.object_stores.marks import (
    Marked,
    check_conditions,
    create_mark,
    read_mark,
    replace_mark,
)
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ports.errors import LakeAway, WarehouseTaken
from harness_pipelines.ports.lake import reachable
from harness_pipelines.spec.locations import normal

MARK = ".harness-owner.json"
TRUSTED_S = 20.0  #: how long a mark that was read is believed, except before files are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A ledger in its database."""

    ledger: str  #: uuid that the ledger was given when it was made
    instance: str  #: the cluster's system identifier and the database's oid
    epoch: str  #: uuid of its last take-over; before the first one the ledger's own
    database: str  #: for people: name, host and port
    timeline: int = 0  #: that its server writes: larger after each promotion; 0 in marks from before it was named

    def is_same(self, other: Owner) -> bool:
        return (self.ledger, self.instance, self.epoch) == (other.ledger, other.instance, other.epoch)

    def may_work(self, mark: Owner) -> bool:
        """The mark is this ledger's, and was not written by a server that was promoted since."""
        return self.is_same(mark) and mark.timeline <= self.timeline

    def to_json(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger,
            "instance": self.instance,
            "epoch": self.epoch,
            "database": self.database,
            "timeline": self.timeline,
        }


class Ownership:
    """The mark of one warehouse, seen from one ledger."""

    def __init__(self, database: Database, *, warehouse: str) -> None:
        self._database, self._warehouse = database, normal(warehouse)
        self._read_at = -inf  #: monotonic seconds; -inf: it was not seen to be this ledger's
        self._lock = Lock()

    def check(self, *, times: float = 1) -> None:
        """The warehouse is this ledger's, by a mark that was read lately. Cheap: it is read every `TRUSTED_S` at most.

        A caller that writes nothing before another look believes the mark *times* as long.
        A warehouse of this ledger that is away blocks nothing: the users of the lake meet the error themselves.
        Raises: as `confirm`.
        """
        with self._lock:  # of threads that come at once one reads
            if time.monotonic() < self._read_at + times * TRUSTED_S:
                return
            known = self._read_at > -inf
            try:
                self.confirm()
            except LakeAway:
                if not known:
                    raise
                self._read_at = time.monotonic()

    def is_fresh(self) -> bool:
        """`check` believes the mark that was read last, even for a caller that writes."""
        return time.monotonic() < self._read_at + TRUSTED_S

    def confirm(self) -> None:
        """The warehouse is this ledger's, by what its mark says now; one that has no mark yet becomes it.

        Raises: WarehouseTaken, naming both; LakeAway.
        """
        try:
            ours, found = self.ours(), self._found()
            if found is None:
                if self._read_at > -inf:
                    raise LakeAway(
                        f"{self._warehouse} has no {MARK} any more: is the folder there? Nothing was removed; if it "
                        "is, a worker that is started again makes the mark again"
                    )
                self._claim(ours)
                found = self._found()  # of several that came at once, the mark names one
            if found is None or not ours.may_work(found):
                raise WarehouseTaken(_explained(self._warehouse, ours, found))
        except WarehouseTaken:
            self._read_at = -inf
            raise
        self._read_at = time.monotonic()

    def stranger(self) -> str | None:
        """Whose the warehouse is by its mark, if not this ledger's: for people. Changes nothing. Raises: LakeAway."""
        ours = self.ours()
        try:
            found = self._found()
        except WarehouseTaken:
            return f"an unknown ledger: {MARK} cannot be read"
        return None if found is None or ours.may_work(found) else _told(ours, found)

    def follow(self) -> None:
        """Let the mark name the timeline of a server that was promoted. It must know all that the lake names.

        Raises: as `confirm`.
        """
        ours, seen = self.ours(), self._seen()
        found = None if seen is None else self._owner(seen)
        if found is not None and ours.is_same(found) and found.timeline < ours.timeline:
            self._replace(ours, seen)
            self.confirm()

    def take_over(self) -> None:
        """Make the warehouse this ledger's, whosever it was, under an epoch that no copy of this ledger knows.

        Raises: WarehouseTaken if another ledger did so at the same time; LakeAway.
        """
        seen = self._seen()  # while the store is away nothing changes
        self._database.run("reconcile/new_epoch")  # first: a process that dies here has lost the warehouse
        self._replace(self.ours(), seen)
        self.confirm()

    def ours(self) -> Owner:
        row = self._database.rows("reconcile/ledger_id")[0]
        place = conninfo_to_dict(self._database.dsn)
        where = f"{row['database']} at {place.get('host', 'the local socket')}:{place.get('port', 5432)}"
        return Owner(
            ledger=row["ledger_id"],
            instance=row["instance"],
            epoch=row["epoch"],
            database=where,
            timeline=row["timeline"],
        )

    def _found(self) -> Owner | None:
        """Whom the mark names; ``None`` when there is no mark. Raises: LakeAway, WarehouseTaken for a damaged mark."""
        seen = self._seen()
        return None if seen is None else self._owner(seen)

    def _seen(self) -> Marked | None:
        with reachable(self._warehouse, "reading its owner's mark"):
            return read_mark(self._place)

    def _owner(self, seen: Marked) -> Owner:
        try:
            words = json.loads(seen.content)
            return Owner(
                ledger=words["ledger"],
                instance=words["instance"],
                epoch=words.get("epoch", words["ledger"]),  # before there were epochs there was no take-over
                database=words["database"],
                timeline=int(words.get("timeline", 0)),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise WarehouseTaken(
                f"{self._warehouse}/{MARK} cannot be read ({error!r}), so the owner of the warehouse is not known; "
                "nothing was written. `harness reconcile TABLE --take-over --yes` makes it this ledger's"
            ) from error

    def _claim(self, ours: Owner) -> None:
        """Write the first mark; an earlier one stays. Raises: StoreUnfit."""
        with reachable(self._warehouse, "writing its owner's mark"):
            if create_mark(self._place, _text(ours)):
                check_conditions(self._place, _text(ours))

    def _replace(self, ours: Owner, seen: Marked | None) -> None:
        """Write over the mark that was *seen*; another one that is there by now stays. Raises: StoreUnfit."""
        with reachable(self._warehouse, "writing its owner's mark"):
            if replace_mark(self._place, _text(ours), seen=seen):
                check_conditions(self._place, _text(ours))

    @property
    def _place(self) -> str:
        return f"{self._warehouse.rstrip('/')}/{MARK}"


def _text(ours: Owner) -> bytes:
    return json.dumps(ours.to_json(), indent=1).encode()


def _told(ours: Owner, found: Owner) -> str:
    if ours.is_same(found):
        return (
            f"a server of this database that was promoted since (timeline {found.timeline}, {found.database}; this one "
            f"writes timeline {ours.timeline})"
        )
    if found.ledger == ours.ledger:
        return f"another copy of this ledger, in database {found.database}"
    return f"the ledger {found.ledger} in database {found.database}"


def _explained(warehouse: str, ours: Owner, found: Owner | None) -> str:
    other = "nobody" if found is None else _told(ours, found)
    return (
        f"the warehouse {warehouse} belongs to {other}; this is the ledger {ours.ledger} in database {ours.database}. "
        "Nothing was written. Give this database its own warehouse (HARNESS_WAREHOUSE); or, when the other one is "
        "gone for good, `harness reconcile TABLE --take-over --yes` (of a table that is to be rebuilt: `harness "
        "reconcile FILE --rebuild --take-over --yes`) makes the warehouse this ledger's"
    )
