"""What a load hands out for the files of a table: where their store is, and keys that may only read.

The keys are the same for all tables (static ones, of the settings), or of a session for one table: a role that the
store lets the server take on, with a policy for the folders of that table alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

from harness_pipelines.drivers.object_stores.clients import reader_options
from harness_pipelines.drivers.object_stores.roles import (
    LASTS_MAX,
    LASTS_MIN,
    ROLE,
    WILD,
    ReadingKeys,
    RoleAway,
    RoleRefused,
    assume,
)
from harness_pipelines.errors import UsageError
from harness_pipelines.extras import require
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.spec.settings import READING_KEYS, Settings

RENEWED_AT = "client.refresh-credentials-endpoint"
SHARE_LEFT = 4  #: keys are given out until a quarter of their time is left
AGAIN = timedelta(seconds=10)  #: until the store is asked again that refused, or did not answer
LEFT_MIN = timedelta(minutes=1)  #: that keys last which are given out while the store does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """By which engines reach the files of a table; nothing where they bring their own keys."""

    prefix: str = ""  #: of the locations that the keys are for
    config: Mapping[str, str] = field(default_factory=dict, repr=False)  #: properties of Iceberg
    until: datetime | None = None  #: the keys are good; None: for ever

    def renewed_at(self, path: str) -> Storage:
        """The same, with the *path* of the catalog where Iceberg for Java asks for new keys before these end.

        Keys without an end have none: it would ask for the end, too.
        """
        return replace(self, config={**self.config, RENEWED_AT: path}) if self.until is not None else self

    def credentials(self) -> Sequence[Mapping[str, Any]]:
        """The same as the protocol's list of credentials."""
        return [{"prefix": self.prefix, "config": dict(self.config)}] if self.config else []


class Vending(Protocol):
    """Gives out what engines reach the files of a table by. It may block."""

    def of(self, table: TableRow) -> Storage:
        """Raises: RoleRefused, RoleAway."""
        ...


class OneForAll:
    """The same for each table."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def of(self, table: TableRow) -> Storage:
        return self._storage


class _Session:
    """What the server knows of the keys for one table."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.storage: Storage | None = None
        self.trouble: RoleRefused | RoleAway | None = None
        self.folders: Sequence[str] = ()  #: that the keys are for
        self.looks_at = self.asks_at = datetime.min.replace(tzinfo=UTC)


class ByRole:
    """Keys of a session for each table, which several loads share.

    *keys* asks the store, for the name of a table and its *folders*. These are looked up now and then: a view that is
    begun again has another folder.
    """

    def __init__(
        self,
        keys: Callable[[str, Sequence[str]], ReadingKeys],
        folders: Callable[[TableRow], Sequence[str]],
        storage: Callable[[ReadingKeys], Storage],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys, self._folders, self._storage, self._now = keys, folders, storage, now
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}  #: as many as there are tables

    def of(self, table: TableRow) -> Storage:
        with self._lock:
            session = self._sessions.setdefault(table.table_id, _Session())
        with session.lock:
            now = self._now()
            if now >= min(session.looks_at, session.asks_at):
                self._look(session, table, now)
            if now >= session.asks_at:
                self._ask(session, table, now)
            if session.trouble is not None:
                raise type(session.trouble)(str(session.trouble))
            assert session.storage is not None  # it was asked for
            return session.storage

    def _look(self, session: _Session, table: TableRow, now: datetime) -> None:
        """Keys of before do not open folders that are new."""
        folders = list(self._folders(table))
        session.looks_at = now + AGAIN
        if folders != session.folders:
            session.folders, session.asks_at = folders, now

    def _ask(self, session: _Session, table: TableRow, now: datetime) -> None:
        try:
            keys = self._keys(table.name, session.folders)
        except (RoleRefused, RoleAway) as error:
            session.asks_at = now + AGAIN
            if isinstance(error, RoleRefused):  # it takes back what it gave, as far as it can
                session.storage = None
            old = session.storage.until if session.storage else None
            session.trouble = None if old is not None and old - now > LEFT_MIN else error
            return
        session.storage, session.trouble = self._storage(keys), None
        session.asks_at = max(keys.until - (keys.until - now) / SHARE_LEFT, now + AGAIN)


def handed_out(settings: Settings, *, keep: timedelta, folders: Callable[[TableRow], Sequence[str]]) -> Vending:
    """What the settings say that engines get for a table in *folders*, whose files stay for *keep*.

    Raises: UsageError for keys that belong to no store, or that this server writes with; ExtraMissing.
    """
    if settings.reading_keys is None and settings.reading_role is None:
        return OneForAll(Storage())
    named = " and ".join(READING_KEYS)
    if settings.reading_keys is not None and settings.reading_role is not None:
        raise UsageError(f"{named} are set, and {ROLE} too: keep the keys or the role")
    if settings.warehouse is None or not settings.warehouse.startswith("s3://"):
        theirs = f"{named} are" if settings.reading_role is None else f"{ROLE} is"
        raise UsageError(f"{theirs} for a warehouse on an object store, which {settings.warehouse} is not: unset this")
    prefix = f"s3://{urlsplit(settings.warehouse).netloc}/"
    if settings.reading_role is not None:
        return _by_role(settings, settings.reading_role, prefix, keep=keep, folders=folders)
    assert settings.reading_keys is not None
    key, secret = settings.reading_keys
    if key == settings.s3.access_key:
        raise UsageError(
            f"{named} are the keys that this server writes with; nothing was served. Make other ones, which may only "
            "read the warehouse, or unset them: engines then bring their own"
        )
    return OneForAll(Storage(prefix=prefix, config=reader_options(key, secret, settings.s3)))


def _by_role(
    settings: Settings, role: str, prefix: str, *, keep: timedelta, folders: Callable[[TableRow], Sequence[str]]
) -> ByRole:
    """Raises: UsageError, ExtraMissing."""
    require("s3", ROLE, "botocore")
    if WILD.search(f"{settings.warehouse}"):
        raise UsageError(
            f"{ROLE}: the warehouse {settings.warehouse} has `*`, `?` or `$`, which stand for other names in the "
            "policy of a role; nothing was served. Hand out keys that may only read, or take another warehouse"
        )
    lasts = min(max(SHARE_LEFT * keep, LASTS_MIN), LASTS_MAX)  # what is left is enough for a query

    def storage(keys: ReadingKeys) -> Storage:
        session = keys.session_token, keys.until
        config = reader_options(keys.access_key, keys.secret_key, settings.s3, session=session)
        return Storage(prefix=prefix, config=config, until=keys.until)

    return ByRole(lambda name, places: assume(role, places, settings.s3, name=name, lasts=lasts), folders, storage)
