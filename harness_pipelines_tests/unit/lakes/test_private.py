"""What PyIceberg does not promise is taken in one place, and looked at again with each of its versions."""

import re
from importlib.metadata import version
from pathlib import Path

import harness_pipelines

INSIDE = re.compile(r"^\s*from pyiceberg[\w.]* import (?:\([^)]*\b_\w|[^(\n]*\b_\w)", re.MULTILINE)


def test_only_one_module_imports_private_names_of_pyiceberg() -> None:
    package = Path(harness_pipelines.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if INSIDE.search(path.read_text())}
    assert found == {"lakes/iceberg/private/tables.py"}


def test_only_that_folder_calls_what_pyiceberg_does_not_promise() -> None:
    """Of its objects; a producer of snapshots that is made of PyIceberg's own is the one exception."""
    calls = re.compile(r"\._(apply|registry|session|supported_endpoints|create_staged_table|write_metadata|table\b)")
    package = Path(harness_pipelines.__file__).parent / "lakes/iceberg"
    lines = {(path, line) for path in package.rglob("*.py") for line in path.read_text().splitlines()}
    found = {path.parent.name for path, line in lines if calls.search(line.replace("self._table", ""))}
    assert found == {"private"}


def test_what_is_taken_was_compared_with_this_version() -> None:
    assert version("pyiceberg") == "0.12.0", "compare what lakes/iceberg/private/ names, then change this"
