"""What the ledger notes of files: once, by one spelling, for as long as they are there; readers note nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from harness_pipelines.drivers.file_notes import Known
from harness_pipelines.drivers.postgres import MissingRole
from harness_pipelines.ledgers.postgres.file_digests import Digests
from harness_pipelines.protocol.lake.file_digests import Digest, FileDamaged, digest_of
from harness_pipelines_tests.contract.stores_rig import RealRig

CONTENT = b"what was written"
NOTE = Digest(len(CONTENT), len(CONTENT), digest_of(CONTENT))


def digests(real: RealRig, warehouse: str) -> Digests:
    return Digests(lambda: real.readers, lambda: real.database, warehouse=warehouse)


def a_file() -> tuple[str, str]:
    """A warehouse, and the path of a file in it, which nobody has noted."""
    return "file:///lake", f"/lake/{uuid.uuid4().hex}/data/f.parquet"


def test_a_file_is_noted_once_and_found_by_every_spelling(real: RealRig):
    warehouse, path = a_file()
    noted = digests(real, warehouse)
    noted.add(f"file:{path}", NOTE)
    noted.flush()
    noted.add(f"file://{path}", Digest(1, 1, b"another"))  # its content never changes
    noted.flush()

    known = Known()
    known.bind(noted)
    assert known.of(f"file:{path}") == known.of(f"file://{path}") == known.of(path) == NOTE
    assert known.of(f"file://{path}.other") is None
    assert noted.ask([f"file://{path}"]) == {f"file://{path}": NOTE}, "of all files that are noted, the one"


def test_a_file_that_is_noted_later_is_known_then(real: RealRig):
    warehouse, path = a_file()
    noted, known = digests(real, warehouse), Known()
    known.bind(noted)
    assert known.of(path) is None
    noted.add(path, NOTE)
    noted.flush()
    assert known.of(path) == NOTE


def test_another_warehouse_is_not_asked(real: RealRig):
    warehouse, path = a_file()
    noted, known = digests(real, warehouse), Known()
    noted.add(path, NOTE)
    noted.flush()
    others = [digests(real, "file:///other"), digests(real, "file:///lake/deep")]  # held: only weakly by what asks
    for one in others:
        known.bind(one)
    assert known.of(path) == NOTE, "the warehouse may have been another folder once"
    other = Known()
    away = Digests(broken, broken, warehouse="file:///away")
    other.bind(away)
    other.bind(noted)
    assert other.of(path) == NOTE


def broken() -> Any:
    raise AssertionError("it has nothing to do with this file")


def test_a_note_goes_with_its_file(real: RealRig):
    warehouse, path = a_file()
    noted = digests(real, warehouse)
    noted.add(path, NOTE)
    noted.flush()
    real.database.run("upkeep/forget_files", {"table_id": 0, "paths": [f"file://{path}"]})
    known = Known()
    known.bind(noted)
    assert known.of(path) is None


def test_readers_note_nothing(real: RealRig):
    warehouse, path = a_file()
    reading = Digests(lambda: real.readers, lambda: real.readers, warehouse=warehouse)
    reading.add(path, NOTE)
    with pytest.raises(MissingRole):
        reading.flush()


@pytest.mark.parametrize(("size", "tail", "said"), [(15, CONTENT, "15 bytes are there, 16"), (16, b"x", "it is not")])
def test_what_differs_is_said(size: int, tail: bytes, said: str):
    with pytest.raises(FileDamaged, match=f"lake/f is damaged: {said}"):
        NOTE.check("lake/f", size=size, tail=tail)
