"""What PyIceberg does not promise is taken in one place, and looked at again with each of its versions."""

import re
from importlib.metadata import version
from pathlib import Path

import harness_pipelines

INSIDE = re.compile(r"^\s*from pyiceberg[\w.]* import (?:\([^)]*\b_\w|[^(\n]*\b_\w)", re.MULTILINE)


def test_only_one_module_imports_private_names_of_pyiceberg() -> None:
    package = Path(harness_pipelines.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if INSIDE.search(path.read_text())}
    assert found == {"lakes/iceberg/private.py"}


def test_what_is_taken_was_compared_with_this_version() -> None:
    assert version("pyiceberg") == "0.12.0", "compare what lakes/iceberg/private.py names, then change this"
