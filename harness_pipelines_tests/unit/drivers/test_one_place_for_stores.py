"""One place makes clients of stores and says how an engine reaches them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness_pipelines

PACKAGE = Path(harness_pipelines.__file__).parent
GLUE = "lakes/iceberg/catalogs/glue.py"  #: makes a client of a catalog, which its settings name by `client.` too
#: What makes a file system, a store's client or PyIceberg's access to files; and where it may be named.
MAKERS = {
    "from_uri": set[str](),
    "S3FileSystem": {"drivers/object_stores/clients.py"},
    "GcsFileSystem": set[str](),
    "AzureFileSystem": set[str](),
    "LocalFileSystem": {"drivers/files.py"},
    "FileSelector": {"drivers/files.py"},  # of local folders: pages of a store are looked at in `listing.py`
    "S3Store": {"drivers/object_stores/clients.py"},
    "obstore": {
        "drivers/object_stores/answers.py",
        "drivers/object_stores/clients.py",
        "drivers/object_stores/deletion.py",
        "drivers/object_stores/marks.py",
        "drivers/object_stores/probe.py",
        "drivers/object_stores/troubles.py",
    },
    "botocore": {
        "drivers/object_stores/clients.py",
        "drivers/object_stores/bucket.py",
        "drivers/object_stores/listing.py",
        "drivers/object_stores/roles.py",
        GLUE,
    },
    "boto3": set[str](),
    "load_file_io": set[str](),
    "PyArrowFileIO": {"lakes/iceberg/checked_io.py"},
}
#: Properties by which an engine is told of a store; the prefix of a word in a text.
PROPERTIES = ("s3.", "io-impl", "client.region", "fs.s3", "adls.", "gcs.")


def used_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names) | ast.ImportFrom(names=names):
                yield from (n.name.partition(".")[0] for n in names)
                if isinstance(node, ast.ImportFrom):
                    yield (node.module or "").partition(".")[0]
            case ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(value)) if value.startswith(PROPERTIES) and " " not in value:
                yield "a property of a store"


def trespasses(module: str, text: str) -> list[str]:
    return [
        f"{module}: {used}"
        for used in used_in(text)
        if (used in MAKERS and module not in MAKERS[used])
        or (used == "a property of a store" and module not in {"drivers/object_stores/clients.py", GLUE})
    ]


def test_nobody_else_makes_a_file_system_a_client_or_a_stores_properties():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += trespasses(path.relative_to(PACKAGE).as_posix(), path.read_text())
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from pyarrow.fs import S3FileSystem",
        "FileSystem.from_uri(place)",
        "import obstore",
        "from botocore.session import get_session",
        "from obstore.store import from_url",
        "io = load_file_io()\nfrom pyiceberg.io import load_file_io",
        'options = {"s3.endpoint": place}',
        'options["io-impl"] = "x"',
    ],
)
def test_the_gate_sees_each_way_past_it(text: str):
    assert trespasses("lakes/iceberg/new.py", text)
