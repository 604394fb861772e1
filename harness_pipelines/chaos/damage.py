"""A fault: the bytes of a file in the lake are changed for the duration of one read.

The read is a separate process, so that nothing of the file is in its memory yet. It reads exactly the plan that it is
given: a right answer, or an error by name. The file is as it was before when this process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.chaos.content import COORDINATES
from harness_pipelines.chaos.processes import tell
from harness_pipelines.chaos.reader import fingerprint, read_by_arrow
from harness_pipelines.chaos.schedule import How, Part
from harness_pipelines.drivers.files import opened
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.show.logs import configure_logging
from harness_pipelines.spec.locations import local_path, normal

PATIENCE_S = 120.0  #: for a store that comes back, until the file can be put right


def files_of(plan: ReadPlan, part: Part) -> list[str]:
    """The locations of the files that a read of *plan* needs."""
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
                found |= {one.path for file in view.files for one in (file, file.deletes) if one}
    return sorted(map(normal, found))


def damaged(original: bytes, how: How, place: float) -> bytes:
    """*original* with a bit flipped, or cut, at *place* of its length (0 to 1)."""
    at = int(place * len(original))
    if how is How.CUT:
        return original[:at]
    bit = 1 << int(place * len(original) * 8) % 8
    return original[:at] + bytes([original[at] ^ bit]) + original[at + 1 :]


@contextmanager
def planted(location: str, how: How, place: float) -> Iterator[None]:
    """While the block lasts, the file at *location* is damaged. Raises: OSError, with the file as it was."""
    system, path = opened(location)
    with system.open_input_stream(path) as stream:
        original = bytes(stream.read())
    try:
        _put(location, damaged(original, how, place))
        yield
    finally:
        until = time.monotonic() + PATIENCE_S
        while True:  # the store may be broken too
            try:
                _put(location, original)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)


def _put(location: str, content: bytes) -> None:
    """Replace a file at once: nobody reads half of it."""
    if (local := local_path(location)) is None:
        system, path = opened(location)
        with system.open_output_stream(path) as stream:
            stream.write(content)
        return
    there = Path(local)
    beside = there.with_name(f".{there.name}.chaos")
    beside.write_bytes(content)
    os.replace(beside, there)


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
            with reachable(name, "damaging a file"), planted(path, How(how), float(place)):
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
