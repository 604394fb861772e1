"""Where the files of a table's cuts lie, and how they are written there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID, uuid4

from pyiceberg.io import FileIO

from harness_pipelines.drivers.object_stores.marks import create_mark, read_mark
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import CutImpossible
from harness_pipelines.protocol.cuts import cut_folder, table_uuid
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The fresh folder of one table."""

    folder: str
    uuid: UUID  #: that all cuts of the table have
    io: FileIO  #: reads the files of any place

    @classmethod
    def of(cls, table: TableRow, version: Version, *, warehouse: str, io: FileIO) -> Place:
        folder = cut_folder(table.spec.name, version.stream.metadata)
        return cls(folder=folder, uuid=table_uuid(warehouse, table.table_id), io=io)

    @property
    def refused(self) -> str:
        """Where a writer that is refused at its commit has left its files."""
        return f"{self.folder}/refused"

    def metadata_file(self, name: str) -> str:
        return f"{self.folder}/metadata/{name}"

    def data_file(self, kind: str) -> str:
        """A name that no other file has."""
        return f"{self.folder}/data/{uuid4()}-{kind}.parquet"

    def put(self, path: str, content: bytes) -> int:
        """Write a new file, whole or not at all; return its bytes. Raises: OSError, StoreRefused."""
        if not create_mark(path, content):  # after a lost answer it is our own that is there
            seen = read_mark(path)
            if seen is None or seen.content != content:
                raise FileExistsError(f"{path} is there, and has another content; nothing was written over it")
        return len(content)


def common_folder(*folders: str) -> str:
    """The folder that all *folders* are in: some engines look for every file of a table below its location.

    Raises: CutImpossible where they have none but the root, or the store itself.
    """
    parents = [normal(folder).rstrip("/").split("/")[:-1] for folder in folders]
    levels = takewhile(lambda names: len(set(names)) == 1, zip(*parents, strict=False))
    found = [names[0] for names in levels]
    if len(found) <= 3:  # "file://" or "s3://bucket"
        raise CutImpossible(
            f"{', '.join(folders)} have no folder in common, and Iceberg's engines read the files of a table below one "
            "folder; nothing was written"
        )
    return "/".join(found)
