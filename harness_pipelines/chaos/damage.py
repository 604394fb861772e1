"""A fault: the bytes of a file in the lake are changed for the duration of one read.

The read is a separate process, so that nothing of the file is in its memory yet. It reads exactly the plan that it is
given: a right answer, or an error by name. The file is as it was before when this process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson
import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.chaos.content import COORDINATES
from harness_pipelines.chaos.processes import tell
from harness_pipelines.chaos.reader import fingerprint, read_by_arrow
from harness_pipelines.chaos.schedule import How, Part
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.show.logs import configure_logging


def files_of(plan: ReadPlan, part: Part) -> list[Path]:
    """The files that a read of *plan* needs."""
    found: set[str] = set()
    for one in plan.lake:
        view = pinned(one.metadata)
        if not view.manifests:  # no snapshot
            continue
        manifest_list, *manifests = view.manifests
        match part:
            case Part.METADATA:
                found |= {one.metadata, manifest_list}
            case Part.MANIFEST:
                found |= set(manifests)
            case Part.DATA:
                found |= {data.file_path for file in view.files for data in (file.data, file.deletes) if data}
    return sorted(Path(unquote(urlsplit(path).path)) for path in found)


def damaged(original: bytes, how: How, place: float) -> bytes:
    """*original* with a bit flipped, or cut, at *place* of its length (0 to 1)."""
    at = int(place * len(original))
    if how is How.CUT:
        return original[:at]
    bit = 1 << int(place * len(original) * 8) % 8
    return original[:at] + bytes([original[at] ^ bit]) + original[at + 1 :]


@contextmanager
def planted(path: Path, how: How, place: float) -> Iterator[None]:
    """While the block lasts, *path* is damaged."""
    original = path.read_bytes()
    try:
        _put(path, damaged(original, how, place))
        yield
    finally:
        _put(path, original)


def _put(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.chaos")
    beside.write_bytes(content)
    os.replace(beside, path)


def digest_of(rows: pa.Table) -> str:
    """Of all values, in whatever order the rows come."""
    text = rows.sort_by([(name, "ascending") for name in COORDINATES]).column("s").to_pylist()
    return hashlib.blake2b((fingerprint(rows) + repr(text)).encode()).hexdigest()


def main() -> None:
    name, plan_path, path, how, place = sys.argv[1:]
    configure_logging()
    plan = ReadPlan.from_json(orjson.loads(Path(plan_path).read_bytes()))
    try:
        with hp.connect() as harness:
            table = harness.table(name)
            with planted(Path(path), How(how), float(place)):
                said = {"read": digest_of(read_by_arrow(table, plan))}
    except TryAgain as error:  # also before anything is damaged: another fault may last
        said = {"away": f"{type(error).__name__}: {error}"}
    except HarnessError as error:
        said = {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:  # an error without a name is a finding
        said = {"unnamed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    tell(said)


if __name__ == "__main__":
    main()
