"""A time that is shown has its day and its zone: who reads the log of yesterday, or elsewhere, is not misled."""

from __future__ import annotations

import re
from pathlib import Path

import harness_pipelines

ROOT = Path(harness_pipelines.__file__).parent
_CLOCK = re.compile(r"%H:%M")
_WHOLE = re.compile(r"%Y-%m-%d[ T]%H:%M:%S(?:\.%f)?(?:Z| %Z|%z|\} UTC)")
_OF_VALUES = {"layout/labels.py"}  #: shows values of columns, which say themselves whether they have a zone
_SQL_CLOCK = re.compile(r"to_char\(([^()]*?), '([^']*HH24[^']*)'\)")


def _lines(pattern: str) -> list[tuple[str, int, str]]:
    return [
        (str(path.relative_to(ROOT)), number, line)
        for path in sorted(ROOT.rglob(pattern))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


def test_every_time_that_is_shown_has_a_day_and_a_zone() -> None:
    odd = [
        (name, number)
        for name, number, line in _lines("*.py")
        if name not in _OF_VALUES and len(_CLOCK.findall(line)) != len(_WHOLE.findall(line))
    ]
    # The one format that others take has the zone itself.
    assert [at for at in odd if 'TIME = "%Y-%m-%d %H:%M:%S %Z"' not in _line(*at)] == []


def _line(name: str, number: int) -> str:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()[number - 1]


def test_so_has_every_time_that_the_database_says() -> None:
    newest = {}  # of the functions that migrations replace, the last text counts
    for name, _, _ in _lines("*.sql"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for part in re.split(r"(?=^CREATE (?:OR REPLACE )?FUNCTION )", text, flags=re.MULTILINE):
            called = re.match(r"CREATE (?:OR REPLACE )?FUNCTION (\S+)\(", part)
            newest[called[1] if called else name] = part
    found = [said for part in newest.values() for said in _SQL_CLOCK.findall(part)]
    assert len(found) == 2
    assert [(what, how) for what, how in found if "AT TIME ZONE 'UTC'" not in what or "YYYY-MM-DD" not in how] == []


def test_no_time_is_shown_by_the_clock_of_the_browser_or_of_the_machine() -> None:
    local = re.compile(r"toLocale(?:Time|Date)String\(|datetime\.now\(\)|utcnow\(|utc=False|localtime\(|ctime\(")
    found = [
        (name, number) for pattern in ("*.py", "*.js") for name, number, line in _lines(pattern) if local.search(line)
    ]
    assert found == []
