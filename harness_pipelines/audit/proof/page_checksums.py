"""Verify the bytes of data files without decoding rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from harness_pipelines.lakes.iceberg.parquet import check_pages, damage_named
from harness_pipelines.lakes.iceberg.read.rows import judged
from harness_pipelines.lakes.iceberg.read.scan import LakeFile, PinnedView
from harness_pipelines.ports.errors import LakeFileBroken
from harness_pipelines.ports.ledger import TableRow

AT_ONCE = 4
NAMED_MAX = 20


def check_pages_of(
    table: TableRow, view: PinnedView, files: Iterable[LakeFile], *, step: Callable[[int], None]
) -> None:
    """Compare each page of *files* with its checksum; *step* is called for each file.

    Raises: LakeFileBroken, which names them; LakeFileMissing, LakeUnreadable.
    """

    def wrong(file: LakeFile) -> str | None:
        try:
            with judged(table, file):
                for data in (file.data, file.deletes):
                    if data is not None:
                        _read(view, data.file_path)
        except LakeFileBroken as error:
            return str(error)
        return None

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bytes") as pool:
        broken = []
        for said in pool.map(wrong, files):
            step(0)
            broken += [said] if said is not None else []
    if broken:
        more = f"; {len(broken) - NAMED_MAX:,} more" if len(broken) > NAMED_MAX else ""
        raise LakeFileBroken("; ".join(broken[:NAMED_MAX]) + more)


def _read(view: PinnedView, path: str) -> None:
    with damage_named(view.io, path), view.io.new_input(path).open() as stream:
        check_pages(stream)
