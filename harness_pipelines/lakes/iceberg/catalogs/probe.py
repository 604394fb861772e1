"""What a REST catalog does to a table: asked of two scratch tables of one row each, which are dropped again."""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.types import LongType, NestedField

from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog
from harness_pipelines.lakes.iceberg.catalogs.updates import requirements, updates
from harness_pipelines.lakes.iceberg.private.rest import RestClient
from harness_pipelines.ports.lake import Probed
from harness_pipelines.protocol.lake.mirrors import VERSION

BRANCH = "probe"
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))
_ROW = pa.table({"id": pa.array([1], pa.int64())}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))


class Scratch:
    """One table of ours and its registration at the server."""

    def __init__(self, client: RestClient, lake: StagingCatalog, namespace: tuple[str, ...], folder: str) -> None:
        self.client, self.name = client, f"harness_probe_{uuid4().hex[:10]}"
        self.identifier = (*namespace, self.name)
        self.elsewhere = f"{folder}/{self.name}-there"
        self.ours = lake.stage_new(
            ("probe", self.name),
            schema=_SCHEMA,
            location=f"{folder}/{self.name}",
            properties={},
            arrangement=Arrangement.NONE,
        )
        self.ours.append(_ROW)
        first = self.ours.current_snapshot()
        assert first is not None
        self.first = first.snapshot_id
        self.ours.manage_snapshots().create_branch(self.first, BRANCH).commit()

    def load(self) -> Table:
        found: Table = self.client.load_table(self.identifier)
        return found

    def change(self, there: Table, *, version: int) -> CommitTableRequest:
        """Another row, as a commit on what is *there*."""
        self.ours.append(_ROW)
        return CommitTableRequest(
            identifier=TableIdentifier(namespace=self.identifier[:-1], name=self.name),
            requirements=requirements(there.metadata),
            updates=updates(there.metadata, self.ours.metadata, version=version, elsewhere=self.elsewhere),
        )

    def drop(self) -> None:
        with suppress(NoSuchTableError):
            self.client.drop_table(self.identifier)


def probe(one: Scratch, other: Scratch, *, transaction: str) -> Probed:
    """Register, commit, repeat, and commit to both at once by *transaction*. Raises: what the client raises."""
    try:
        for scratch in (one, other):
            scratch.client.register_table(scratch.identifier, scratch.ours.metadata_location)
        there = one.load()
        keeps_metadata = there.metadata_location == one.ours.metadata_location
        asked = one.change(there, version=1)
        one.client.commit_table(there, asked.requirements, asked.updates)
        shown = one.load()
        try:
            one.client.commit_table(there, asked.requirements, asked.updates)
            asserts = False
        except CommitFailedException:
            asserts = True
        return Probed(
            keeps_metadata=keeps_metadata,
            keeps_snapshots=any(snapshot.snapshot_id == one.first for snapshot in shown.metadata.snapshots),
            keeps_refs=BRANCH in shown.metadata.refs,
            keeps_properties=shown.metadata.properties.get(VERSION) == "1",
            follows=shown.metadata.current_snapshot_id == one.ours.metadata.current_snapshot_id,
            asserts=asserts,
            transactions=_together(one, other, transaction),
            elsewhere=shown.metadata_location.startswith(one.elsewhere),
        )
    finally:
        one.drop()
        other.drop()


def _together(one: Scratch, other: Scratch, transaction: str) -> bool:
    changes = [scratch.change(scratch.load(), version=2) for scratch in (one, other)]
    body = f'{{"table-changes":[{",".join(change.model_dump_json() for change in changes)}]}}'
    try:
        if not one.client.post(transaction, body):
            return False
    except (CommitFailedException, RESTError):
        return False
    with suppress(RESTError):
        return all(scratch.load().metadata.properties.get(VERSION) == "2" for scratch in (one, other))
    return False
