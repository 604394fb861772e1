"""A foreign catalog that speaks the Iceberg REST protocol, as the mirror of a table asks it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus

import requests
from pydantic import ValidationError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.table.refs import MAIN_BRANCH

from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
from harness_pipelines.lakes.iceberg.catalogs.probe import Scratch, probe
from harness_pipelines.lakes.iceberg.catalogs.updates import REMOVALS, removals_of, requirements, updates
from harness_pipelines.lakes.iceberg.private.rest import RestClient, is_of_catalog
from harness_pipelines.ports.errors import (
    MirrorAway,
    MirrorLoginFailed,
    MirrorNamespaceMissing,
    MirrorRefused,
    MirrorUndecided,
)
from harness_pipelines.ports.lake import MirrorChange, Probed
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.mirrors import VERSION, Seen
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.spec.sections.catalogs import CatalogSpec

WAIT_S = (5.0, 30.0)  #: to connect, and between two packets of an answer
REMOVE_AGAIN_S = 600.0  #: how long commits send no removals after one with removals failed
TOGETHER_AGAIN_S = 600.0  #: how long views are sent one by one where the request for several seemed to be missing
TRANSACTION = "transactions/commit"
_AWAY = (
    requests.RequestException,
    ValidationError,  # an answer without its end
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    CommitStateUnknownException,
)
_LOGIN = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)


class RestMirror:
    """The views of one table in one REST catalog."""

    def __init__(self, table: TableRow, catalog: CatalogSpec, lake: StagingCatalog, *, warehouse: str) -> None:
        self._table, self._spec, self._lake = table, catalog, lake
        namespace = catalog.namespace or table.spec.namespace
        self._namespace = tuple(namespace.split("."))
        self._elsewhere = f"{warehouse}/_mirrors/{catalog.name}/{table.spec.namespace}"
        self._shown: dict[ViewName, Table] = {}  #: what `load` found last, whose commit is built on it
        self._remove_at = 0.0  #: monotonic seconds; commits before it have no removals
        self._together_at = 0.0  #: as this one; commits before it are of one view each

    def load(self, view: ViewName) -> Seen | None:
        """What the server shows. Raises: MirrorAway, MirrorLoginFailed, MirrorRefused."""
        self._shown.pop(view, None)
        with self._asked(f"was asked for {self._name(view)}"):
            try:
                found = self._client.load_table(self._identifier(view))
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                if not is_of_catalog(error):
                    raise ServerError(str(error)) from error
                return None
        self._shown[view] = found
        told = found.metadata.properties.get(VERSION)
        main = found.metadata.refs.get(MAIN_BRANCH)
        return Seen(
            uuid=str(found.metadata.table_uuid),
            snapshot=main.snapshot_id if main else found.metadata.current_snapshot_id,
            version=int(told) if told and told.isdecimal() else None,
            names=(found.metadata_location, *(one.metadata_file for one in found.metadata.metadata_log)),
        )

    def uuid_of(self, view: ViewName, metadata: str) -> str:
        """Of our own view. Raises: MetadataMissing."""
        return str(self._ours(view, metadata).metadata.table_uuid)

    def register(self, view: ViewName, metadata: str) -> None:
        """Raises, besides: MirrorNamespaceMissing, MirrorUndecided."""
        with self._asked(f"was asked to register {self._name(view)}", writes=True):
            try:
                self._client.register_table(self._identifier(view), metadata)
            except RESTError as error:  # PyIceberg has no name for it here
                answer = getattr(error.__cause__, "response", None)
                if answer is not None and answer.status_code == HTTPStatus.NOT_FOUND:
                    if not is_of_catalog(error):
                        raise ServerError(str(error)) from error
                    raise self._no_namespace(error) from error
                raise

    def follow(self, changes: Sequence[MirrorChange]) -> None:
        """All in one request where the server can, else one after the other. Raises, besides: MirrorUndecided."""
        removals = time.monotonic() >= self._remove_at
        asked = [self._request(change, removals=removals) for change in changes]
        try:
            with self._asked("was sent a commit", writes=True):
                self._commit([change.view for change in changes], asked)
        except (MirrorRefused, MirrorUndecided) as error:
            if not any(isinstance(update, REMOVALS) for one in asked for update in one.updates):
                raise
            # Some servers (Nessie) keep what they like and take no removals, which they say in any way.
            self._remove_at = time.monotonic() + REMOVE_AGAIN_S
            raise MirrorUndecided(f"{error}; the next commit removes nothing") from error

    def _commit(self, views: Sequence[ViewName], asked: Sequence[CommitTableRequest]) -> None:
        if len(asked) > 1 and self._commits_together and time.monotonic() >= self._together_at:
            changes = ",".join(one.model_dump_json() for one in asked)
            if self._client.post(TRANSACTION, f'{{"table-changes":[{changes}]}}'):
                return
            self._together_at = time.monotonic() + TOGETHER_AGAIN_S  # it may have been a gateway's word
        for view, one in zip(views, asked, strict=True):
            self._client.commit_table(self._shown[view], one.requirements, one.updates)

    def drop(self, view: ViewName) -> bool:
        """Take the table out of the catalog; its files stay. False: it was not there."""
        with self._asked(f"was asked to drop {self._name(view)}"):
            try:
                self._client.drop_table(self._identifier(view))
            except NoSuchTableError as error:
                if not is_of_catalog(error):
                    raise ServerError(str(error)) from error
                return False
        return True

    def probe(self) -> Probed:
        """What the server does to scratch tables in the mirror's namespace. Raises, besides: MirrorNamespaceMissing."""
        with self._asked("was probed"):
            try:
                folder = f"{self._elsewhere}/probes"
                one, other = (Scratch(self._client, self._lake, self._namespace, folder) for _ in range(2))
                return probe(one, other, transaction=TRANSACTION)
            except NoSuchNamespaceError as error:
                raise self._no_namespace(error) from error

    # -- the client -----------------------------------------------------------------------------------------

    @cached_property
    def _client(self) -> RestClient:
        """Raises: CatalogSecretMissing, and what the first request raises."""
        return RestClient(self._spec.name, wait_s=WAIT_S, **{**self._spec.opened(), "uri": str(self._spec.uri)})

    @cached_property
    def _commits_together(self) -> bool:
        """Whether the server may take the changes of several tables in one request."""
        return self._client.offers(TRANSACTION)

    def _request(self, change: MirrorChange, *, removals: bool) -> CommitTableRequest:
        there = self._shown[change.view].metadata
        ours = self._ours(change.view, change.metadata).metadata
        elsewhere = f"{self._elsewhere}/{self._table.views[change.view]}-{str(there.table_uuid)[:8]}"
        return CommitTableRequest(
            identifier=TableIdentifier(namespace=self._namespace, name=self._table.views[change.view]),
            requirements=requirements(there),
            updates=(
                *updates(there, ours, version=change.version, elsewhere=elsewhere),
                *(removals_of(there, ours) if removals else ()),
            ),
        )

    def _ours(self, view: ViewName, metadata: str) -> Table:
        return self._lake.at((self._table.spec.namespace, self._table.views[view]), metadata)

    def _identifier(self, view: ViewName) -> tuple[str, ...]:
        return (*self._namespace, self._table.views[view])

    def _name(self, view: ViewName) -> str:
        return ".".join(self._identifier(view))

    def _no_namespace(self, error: Exception) -> MirrorNamespaceMissing:
        name = ".".join(self._namespace)
        return MirrorNamespaceMissing(f"{self._where}: it has no namespace {name} ({error}); nothing was registered")

    @property
    def _where(self) -> str:
        return f"{self._table.name}: catalog {self._spec.name} ({self._spec.uri})"

    @contextmanager
    def _asked(self, what: str, *, writes: bool = False) -> Iterator[None]:
        """Name errors. A write without a clear answer may have taken effect, so it is never repeated blindly."""
        try:
            yield
        except (CommitFailedException, TableAlreadyExistsError, NoSuchTableError) as error:
            raise MirrorUndecided(f"{self._where} {what} and answers that it changed meanwhile: {error}") from error
        except _LOGIN as error:
            raise MirrorLoginFailed(f"{self._where} {what} and refused the login: {error}") from error
        except _AWAY as error:
            away = MirrorUndecided if writes else MirrorAway
            raise away(f"{self._where} {what} and gave no answer: {error}; the table continues") from error
        # NotImplementedError is how PyIceberg says that the server does not list the endpoint of a request.
        except (RESTError, NotImplementedError, ValueError) as error:
            raise MirrorRefused(f"{self._where} {what} and refused: {error}") from error
