"""AWS Glue as a foreign catalog: its tables name a metadata file of ours, the one of the version that they show.

Neither Glue nor an engine that reads by it writes metadata. So a commit is one conditional update of the
entry: it names another file, and holds only on the entry that was seen (Glue counts the versions of an entry).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any
from uuid import uuid4

from harness_pipelines.drivers.object_stores.troubles import StoreRefused
from harness_pipelines.extras import needs

with needs("s3", "A catalog of the type `glue`"):
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.session import get_session

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StructType

from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog
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
from harness_pipelines.spec.object_stores import StoreUnsupported
from harness_pipelines.spec.sections.catalogs import CatalogSpec

CONNECT_S, ANSWER_S = 5, 30
METADATA, PREVIOUS = "metadata_location", "previous_metadata_location"
#: Properties of the catalog, as PyIceberg's client names them, and what they are to botocore.
CLIENT = {
    "glue.region": "region_name",
    "client.region": "region_name",
    "glue.access-key-id": "aws_access_key_id",
    "client.access-key-id": "aws_access_key_id",
    "glue.secret-access-key": "aws_secret_access_key",
    "client.secret-access-key": "aws_secret_access_key",
    "glue.session-token": "aws_session_token",
    "client.session-token": "aws_session_token",
}
ACCOUNT, PROFILE = "glue.id", "glue.profile-name"
MISSING = "EntityNotFoundException"
_CHANGED = frozenset({"ConcurrentModificationException", "AlreadyExistsException", MISSING})
_LOGIN = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "UnrecognizedClientException",
    }
)
_BUSY = frozenset({"InternalServiceException", "OperationTimeoutException", "ThrottlingException"})
#: Primitive types that have another name there; what is not here has the same.
HIVE = {"long": "bigint", "time": "string", "timestamptz": "timestamp", "uuid": "string"}
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


class GlueMirror:
    """The views of one table in one database of Glue."""

    def __init__(self, table: TableRow, catalog: CatalogSpec, lake: StagingCatalog, *, warehouse: str) -> None:
        self._table, self._spec, self._lake, self._warehouse = table, catalog, lake, warehouse
        self._database = catalog.namespace or table.spec.namespace
        #: The entry that `load` found last; commits are built on it.
        self._shown: dict[ViewName, Mapping[str, Any]] = {}

    def load(self, view: ViewName) -> Seen | None:
        """What the entry names. Raises: MirrorAway, MirrorLoginFailed, MirrorRefused, MetadataMissing."""
        self._shown.pop(view, None)
        if (entry := self._entry(self._table.views[view])) is None:
            return None
        self._shown[view] = entry
        told = entry.get("Parameters", {})
        if (location := told.get(METADATA)) is None:
            return Seen(uuid="none: it is no Iceberg table", snapshot=None, version=None, names=())
        try:
            metadata = self._metadata(view, location).metadata
        except StoreUnsupported:
            return Seen(uuid=f"none: its files are at {location}", snapshot=None, version=None, names=())
        except StoreRefused as error:
            raise MirrorRefused(f"{self._where}: the entry of {self._table.views[view]} leads to {error}") from error
        version = told.get(VERSION, "")
        return Seen(
            uuid=str(metadata.table_uuid),
            snapshot=metadata.current_snapshot_id,
            version=int(version) if version.isdecimal() else None,
            names=(location,),
        )

    def uuid_of(self, view: ViewName, metadata: str) -> str:
        """Of our own view. Raises: MetadataMissing."""
        return str(self._metadata(view, metadata).metadata.table_uuid)

    def register(self, view: ViewName, metadata: str) -> None:
        """Make the entry. Raises, besides: MirrorNamespaceMissing, MirrorUndecided."""
        self._create(self._table.views[view], self._metadata(view, metadata))

    def follow(self, changes: Sequence[MirrorChange]) -> None:
        """One view after the other: Glue changes one entry at a time. Raises, besides: MirrorUndecided."""
        for change in changes:
            self._update(self._shown[change.view], self._metadata(change.view, change.metadata), version=change.version)

    def drop(self, view: ViewName) -> bool:
        """Delete the entry; files stay. False: it was not there."""
        return self._delete(self._table.views[view])

    def probe(self) -> Probed:
        """What Glue does with a scratch entry in the mirror's database. Raises, besides: MirrorNamespaceMissing."""
        name = f"harness_probe_{uuid4().hex[:10]}"
        folder = f"{self._warehouse}/_mirrors/{self._spec.name}/{self._database}/probes/{name}"
        ours = self._lake.stage_new(
            ("probe", name), schema=_SCHEMA, location=folder, properties={}, arrangement=Arrangement.NONE
        )
        try:
            self._create(name, ours)
            seen = self._entry(name) or {}
            self._update(seen, ours, version=1)
            shown = (self._entry(name) or {}).get("Parameters", {})
            try:
                self._update(seen, ours, version=2)  # on an entry that is not there any more
                asserts = False
            except MirrorUndecided:
                asserts = True
        finally:
            with suppress(MirrorAway, MirrorUndecided):
                self._delete(name)
        kept = shown.get(METADATA) == ours.metadata_location
        return Probed(
            keeps_metadata=kept,
            keeps_snapshots=kept,  # all that the file has
            keeps_refs=kept,
            keeps_properties=shown.get(VERSION) == "1",
            follows=kept,
            asserts=asserts,
            transactions=False,
            elsewhere=kept,  # nothing is written
        )

    # -- entries --------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Mapping[str, Any] | None:
        with self._asked(f"was asked for {self._database}.{name}"):
            try:
                answer = self._glue.get_table(**self._place, Name=name)
            except ClientError as error:
                if _code(error) == MISSING:
                    return None
                raise
        found: Mapping[str, Any] | None = answer.get("Table")
        if found is None:  # a page, which botocore takes for an answer without anything in it
            raise MirrorAway(
                f"{self._where} was asked for {self._database}.{name} and gave no answer; the table continues"
            )
        return found

    def _create(self, name: str, ours: Table) -> None:
        with self._asked(f"was asked to register {self._database}.{name}", writes=True):
            try:
                self._glue.create_table(**self._place, TableInput=entry_of(name, ours))
            except ClientError as error:
                if _code(error) == MISSING:
                    raise MirrorNamespaceMissing(
                        f"{self._where}: it has no database {self._database} ({error}); nothing was registered"
                    ) from error
                raise

    def _update(self, seen: Mapping[str, Any], ours: Table, *, version: int) -> None:
        told = {**seen["Parameters"], PREVIOUS: seen["Parameters"][METADATA], VERSION: str(version)}
        entry = entry_of(seen["Name"], ours, **told)
        with self._asked("was sent a commit", writes=True):
            self._glue.update_table(**self._place, TableInput=entry, SkipArchive=True, VersionId=seen["VersionId"])

    def _delete(self, name: str) -> bool:
        with self._asked(f"was asked to drop {self._database}.{name}"):
            try:
                self._glue.delete_table(**self._place, Name=name)
            except ClientError as error:
                if _code(error) == MISSING:
                    return False
                raise
        return True

    # -- the client -----------------------------------------------------------------------------------------

    @cached_property
    def _glue(self) -> Any:
        """Raises: CatalogSecretMissing, and what a client without region or login raises."""
        given = self._spec.opened()
        session = get_session()
        if PROFILE in given:
            session.set_config_variable("profile", given[PROFILE])
        config = Config(connect_timeout=CONNECT_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 2})
        words = {CLIENT[name]: value for name, value in reversed(given.items()) if name in CLIENT}
        with self._asked("could not be asked"):
            return session.create_client("glue", endpoint_url=self._spec.uri, config=config, **words)

    @cached_property
    def _place(self) -> dict[str, str]:
        account = self._spec.opened().get(ACCOUNT)
        return {"DatabaseName": self._database, **({"CatalogId": account} if account else {})}

    def _metadata(self, view: ViewName, location: str) -> Table:
        return self._lake.at((self._table.spec.namespace, self._table.views[view]), location)

    @property
    def _where(self) -> str:
        place = f" ({self._spec.uri})" if self._spec.uri else ""
        return f"{self._table.name}: catalog {self._spec.name}{place}"

    @contextmanager
    def _asked(self, what: str, *, writes: bool = False) -> Iterator[None]:
        """Name errors. A write without a clear answer may have taken effect, so it is never repeated blindly."""
        away = MirrorUndecided if writes else MirrorAway
        try:
            yield
        except ClientError as error:
            said = f"{self._where} {what}"
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if writes and _code(error) in _CHANGED:
                raise MirrorUndecided(f"{said} and answers that it changed meanwhile: {error}") from error
            if _code(error) in _LOGIN:
                raise MirrorLoginFailed(f"{said} and refused the login: {error}") from error
            if _code(error) in _BUSY or status >= 500:
                raise away(f"{said} and gave no answer: {error}; the table continues") from error
            raise MirrorRefused(f"{said} and refused: {error}") from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise MirrorLoginFailed(f"{self._where} {what}, and there is no login for it: {error}") from error
        except BotoCoreError as error:
            raise away(f"{self._where} {what} and gave no answer: {error}; the table continues") from error


def entry_of(name: str, ours: Table, **parameters: str) -> dict[str, Any]:
    """The entry of a table that names the metadata file of *ours*; columns are for consoles and grants."""
    schema = ours.schema()
    columns = [{"Name": one.name, "Type": hive_type(one.field_type)} for one in schema.fields]
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**parameters, "table_type": "ICEBERG", METADATA: ours.metadata_location},
        "StorageDescriptor": {"Columns": columns, "Location": ours.location()},
    }


def hive_type(kind: IcebergType) -> str:
    """The word of Hive, and so of Glue, for an Iceberg type."""
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{one.name}:{hive_type(one.field_type)}' for one in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"array<{hive_type(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{hive_type(kind.key_type)},{hive_type(kind.value_type)}>"
    text = str(kind).replace(" ", "")
    return HIVE.get(text, "binary" if text.startswith("fixed") else text)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
