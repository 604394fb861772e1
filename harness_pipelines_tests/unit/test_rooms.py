"""The rooms of the code: exceptions from the import rules only shrink, and no folder or module outgrows a reader."""

from __future__ import annotations

import re
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import harness_pipelines

PACKAGE = Path(harness_pipelines.__file__).parent
#: How many imports each contract still lets pass. `lint-imports` refuses an entry that no import needs any more.
EXCEPTIONS = {"layers": 0, "flows": 0, "spark": 0, "iceberg": 0, "kafka": 1, "postgres": 2, "web": 0}
MODULES_MAX, LINES_MIN, LINES_MAX = 20, 40, 600
#: Modules below the limit, and why each is opened on its own. The list only shrinks.
CRUMBS = {
    "app/doctor/registry.py": "the doctor has one module for each system",
    "cli/operate/completion.py": "a command has its module",
    "drivers/object_stores/bound.py": "commands import it before they know whether they need a client of a store",
    "engines/spark/executors/functions.py": "executors get its functions by value, and nothing else of the product",
    "lakes/iceberg/reads.py": "the port that flows read the lake by, as a list of what stands for it",
    "pauses.py": "every room may pause, so it is below all of them",
    "protocol/coordinates.py": "one list of the columns that every room knows",
}


def test_exceptions_from_the_import_rules_only_shrink():
    rules = ConfigParser(delimiters=("=",), comment_prefixes=(";",))
    rules.read(PACKAGE.parent / ".importlinter", encoding="utf-8")
    listed = {}
    for contract in EXCEPTIONS:
        entries = rules.get(f"importlinter:contract:{contract}", "ignore_imports", fallback="").split("\n")
        listed[contract] = sum("->" in entry and not entry.endswith("*") for entry in entries)
    assert listed == EXCEPTIONS, "lower the number where the list has shrunk; do not raise it"


def test_flows_and_adapters_take_ports_and_know_no_composition_root():
    """Not in annotations either, which `lint-imports` leaves out."""
    rooms = (
        "stages",
        "read",
        "audit",
        "ports",
        "sources",
        "buffers",
        "lakes",
        "ledgers",
        "engines",
        "sinks",
        "services",
    )
    files = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    assert len(files) > 200
    knows = re.compile(r"harness_pipelines\.(app|cli|defs|demo|chaos)\b")
    assert [str(path.relative_to(PACKAGE)) for path in files if knows.search(path.read_text(encoding="utf-8"))] == []


def test_the_package_runs_without_its_tests_but_for_benches():
    names = [path for path in PACKAGE.rglob("*.py") if "harness_pipelines_tests" in path.read_text(encoding="utf-8")]
    assert [str(path.relative_to(PACKAGE)) for path in names] == ["cli/operate/bench.py"]


def test_every_place_that_the_page_on_the_rooms_names_is_there():
    page = (PACKAGE.parent / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page))
    roots = (PACKAGE, PACKAGE.parent, Path(__file__).parents[1])
    assert len(named) > 30
    assert sorted(place for place in named if not any((root / place).exists() for root in roots)) == []


def test_every_name_that_the_page_on_the_rooms_gives_of_a_module_is_in_it():
    page = (PACKAGE.parent / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    given = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)` \(((?:`\w+`(?:, )?)+)\)", page)
    assert len(given) >= 2
    named = {(path, name) for path, names in given for name in re.findall(r"\w+", names)}
    missing = [one for one in sorted(named) if f"class {one[1]}" not in (PACKAGE / one[0]).read_text(encoding="utf-8")]
    assert missing == []


def test_no_folder_is_a_bag_of_modules():
    count = Counter(path.parent for path in PACKAGE.rglob("*.py"))
    assert {str(folder.relative_to(PACKAGE)): n for folder, n in count.items() if n > MODULES_MAX} == {}


def test_no_module_is_too_long_to_be_read():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path.relative_to(PACKAGE)): n for path, n in lines.items() if n > LINES_MAX} == {}


def test_no_module_is_a_crumb():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    short = {path for path, n in lines.items() if n < LINES_MIN and path.name != "__init__.py"}
    assert {str(path.relative_to(PACKAGE)) for path in short} == CRUMBS.keys(), "join it with the module that needs it"
