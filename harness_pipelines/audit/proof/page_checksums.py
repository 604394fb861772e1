"""Verify the bytes of data files without decoding rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from harness_pipelines.ports.errors import LakeFileBroken
from harness_pipelines.ports.lake import LakeFile, LakeView, judged
from harness_pipelines.ports.ledger import TableRow

AT_ONCE = 4
NAMED_MAX = 20


def check_pages_of(table: TableRow, view: LakeView, files: Iterable[LakeFile], *, step: Callable[[int], None]) -> None:
    """Compare each page of *files* with its checksum; *step* is called for each file.

    Raises: LakeFileBroken, which names them; LakeFileMissing, LakeUnreadable.
    """

    def wrong(file: LakeFile) -> str | None:
        try:
            with judged(table, file):
                for one in (file, file.deletes):
                    if one is not None:
                        view.check_bytes(one.path)
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
