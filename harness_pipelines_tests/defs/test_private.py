"""What Dagster does not promise is taken in one place, and looked at again with each of its versions."""

import re
from importlib.metadata import version
from pathlib import Path

import harness_pipelines

INSIDE = re.compile(r"^\s*(?:from|import) (?:dagster\w*\._|dagster_shared)", re.MULTILINE)


def test_only_one_module_takes_from_inside_of_dagster() -> None:
    package = Path(harness_pipelines.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if INSIDE.search(path.read_text())}
    assert found == {"defs/private.py"}


def test_what_is_taken_was_compared_with_this_version() -> None:
    assert version("dagster") == "1.13.27", "compare defs/private.py with the new version, then name that here"
