"""A plugin of pytest: runs the tests once to see what each executes, then a few of them on each mutant.

All in one process and with the fixtures of one session. A test that fails on a mutant is run once more without it:
where it fails then too, what the mutant left behind is at fault, the fixtures are made again and the mutant
is tried again.
"""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings

from harness_pipelines_tests.bench.mutation import functions
from harness_pipelines_tests.bench.mutation.plan import Mutant, mutants_of
from harness_pipelines_tests.bench.mutation.reasons import reason
from harness_pipelines_tests.bench.mutation.watch import Watch

SAID = "mutant> "  #: begins the lines that the bench reads
FIRST = 4  #: tests that are tried first: those that have noticed most mutants of the kind
LEAST = 20  #: tests that are tried however slow the machine is
EXCUSED_S = 2.0  #: a mutant that nobody can notice is tried all the same, but not for long
#: In the names of tests that are likely to notice a mutant of a kind.
_WORDS: Mapping[str, Sequence[str]] = {
    "lock": ("lock", "wait"),
    "fence": ("lock", "wait"),
    "order": ("order", "oldest", "newest", "listed"),
}
SAY_EACH_S = 20.0  #: how often it says how far it is


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants-task", help="the JSON file that says what to do")


def pytest_configure(config: pytest.Config) -> None:
    if task := config.getoption("--mutants-task"):
        config.pluginmanager.register(_Mutants(config, json.loads(Path(task).read_bytes())), "mutants")


class _Mutants:
    def __init__(self, config: pytest.Config, task: Mapping[str, Any]) -> None:
        self._config, self._task = config, task
        self._watch = Watch()
        self._failed = False
        self._said_at = time.monotonic()
        self._ready: pytest.Item | None = None  #: whose fixtures stand
        self._killers: Counter[tuple[str, str]] = Counter()  #: mutants of each kind that each test function has killed
        hypothesis_settings.register_profile(
            "mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate), max_examples=15
        )
        hypothesis_settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """A function is broken in the test's database, once its fixtures are ready."""
        mutant, dsn = self._watch.mutant, _database(item)
        with (
            functions.replaced(dsn, mutant.section, mutant.text)
            if mutant is not None and mutant.file == functions.FILE and dsn is not None
            else nullcontext()
        ):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with self._watch.installed():
            covered = self._covered(items)
            wanted = list(self._wanted(covered))
            self._say(f"{len(wanted):,} mutants to judge")
            for at, mutant in enumerate(wanted):
                self._say_now_and_then(f"{at:,} of {len(wanted):,} mutants judged")
                ways = _ways(covered, mutant)
                self._judge(mutant, sorted(ways, key=lambda nodeid: _makes_databases(items[nodeid])), items)
            self._rest()
        return True

    # -- what runs what -------------------------------------------------------------------------------------

    def _covered(self, items: Mapping[str, pytest.Item]) -> Mapping[str, Any]:
        """{test: its seconds and the (statement, caller)s that it runs}, of a file that is made once."""
        path = Path(self._task["covered"])
        known = json.loads(path.read_bytes()) if path.exists() else {}
        new = [one for one in items if known.get(one, {}).get("file") != self._file(one)]
        for at, nodeid in enumerate(new):
            self._say_now_and_then(f"{at:,} of {len(new):,} tests run, to see what they execute")
            item = items[nodeid]
            began = time.monotonic()
            fails = self._fails(item)
            ran = sorted(self._watch.seen)
            if fails:
                self._say(f"fails without a mutant, and is left out: {nodeid}")
            again_s = time.monotonic() - began
            seconds = round(again_s, 3)
            known[nodeid] = {"seconds": seconds, "ran": [] if fails else ran, "file": self._file(nodeid)}
            if at % 50 == 0:
                path.write_text(json.dumps(known))
        path.write_text(json.dumps(known))
        return {nodeid: one for nodeid, one in known.items() if nodeid in items}

    def _wanted(self, covered: Mapping[str, Any]) -> Iterator[Mutant]:
        callers: dict[str, set[str]] = defaultdict(set)
        for one in covered.values():
            for statement, caller in one["ran"]:
                callers[statement].add(caller)
        judged = set(self._task["judged"])
        for statement in self._task["statements"]:
            for mutant in mutants_of(statement, callers[statement]):
                if mutant.digest not in judged:
                    yield mutant

    # -- judging --------------------------------------------------------------------------------------------

    def _judge(self, mutant: Mutant, ways: Sequence[str], items: Mapping[str, pytest.Item]) -> None:
        """Say whether a test notices *mutant*: the quickest ones first, and those that have noticed others."""
        began = time.monotonic()
        found: dict[str, Any] = {
            "name": mutant.name,
            "digest": mutant.digest,
            "statement": mutant.statement,
            "tests": len(ways),
        }
        killed = None
        budget_s, least = self._task["budget_s"], LEAST
        if reason(mutant.name):
            budget_s, least = min(budget_s, EXCUSED_S), 1
        known = [one for one in ways if self._killers[mutant.kind, _function(one)]]
        first = sorted(known, key=lambda nodeid: -self._killers[mutant.kind, _function(nodeid)])[:FIRST]
        for tried, nodeid in enumerate([*first, *(one for one in ways if one not in first)]):
            if tried >= least and time.monotonic() - began > budget_s:
                break
            if self._fails(items[nodeid], mutant):
                if not self._fails(items[nodeid]):
                    killed = nodeid
                    break
                self._rest()  # what was left behind goes with the fixtures
                if self._fails(items[nodeid], mutant) and not self._fails(items[nodeid]):
                    killed = nodeid
                    break
        if killed:
            self._killers[mutant.kind, _function(killed)] += 1
        seconds = time.monotonic() - began
        found |= {"killed": killed, "by": killed and self._file(killed), "seconds": round(seconds, 2)}
        self._say(json.dumps({**found, "budget_s": self._task["budget_s"]}))

    def _fails(self, item: pytest.Item, mutant: Mutant | None = None) -> bool:
        """Run *item*, whatever ran before it."""
        if self._ready is not None:
            item.session._setupstate.teardown_exact(item)
        self._ready, self._failed = item, False
        item._initrequest()  # type: ignore[attr-defined]
        self._watch.seen.clear()
        self._watch.mutant = mutant
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=item.parent)  # all but its own fixtures are kept
        finally:
            self._watch.mutant = None
        return self._failed

    def _rest(self) -> None:
        """End all fixtures."""
        if self._ready is not None:
            try:
                self._ready.session._setupstate.teardown_exact(None)
            except Exception as error:  # a mutant may leave a session that holds its database
                self._say(f"left behind: {error}")
            self._ready = None

    def _file(self, nodeid: str) -> str:
        """What the file of a test was like."""
        found: str = self._task["files"][nodeid.partition("::")[0]]
        return found

    def _say_now_and_then(self, text: str) -> None:
        if time.monotonic() - self._said_at > SAY_EACH_S:
            self._said_at = time.monotonic()
            self._say(text)

    def _say(self, text: str) -> None:
        with _shown(self._config):
            print(f"\n{SAID}{text}", flush=True)


@contextmanager
def _shown(config: pytest.Config) -> Iterator[None]:
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield
        return
    with capture.global_and_fixture_disabled():
        yield


def _makes_databases(item: pytest.Item) -> bool:
    """Each of them is dropped at the end, which takes a second."""
    function = getattr(item, "function", None)
    return function is not None and "make_database" in inspect.signature(function).parameters


def _database(item: pytest.Item) -> str | None:
    """The database that *item* works on; ``None``: none that was there before it."""
    given: Mapping[str, Any] = getattr(item, "funcargs", {})
    rigs = (getattr(given.get(name), "dsn", None) for name in ("real", "stores", "opened"))
    return next((dsn for dsn in rigs if dsn), given.get("ledger_dsn"))


def _function(nodeid: str) -> str:
    """The test without its parameters."""
    return nodeid.partition("[")[0]


def _ways(covered: Mapping[str, Any], mutant: Mutant) -> list[str]:
    """Tests that run what *mutant* breaks: for a lock those of locks first, for an order those that name one, then
    those that are called like the statement, then those that run little else.
    """
    words = [word.rstrip("s") for word in mutant.section.split("_") if len(word) > 3]
    found = [
        nodeid
        for nodeid, one in covered.items()
        if any(s == mutant.statement and mutant.caller in {None, c} for s, c in one["ran"])
    ]
    seen: Counter[str] = Counter()
    ranked = []
    for nodeid in sorted(found, key=lambda nodeid: (len(covered[nodeid]["ran"]), covered[nodeid]["seconds"])):
        seen[_function(nodeid)] += 1
        of_kind = any(word in _function(nodeid) for word in _WORDS.get(mutant.kind, ()))
        act = nodeid.partition("[")[2].partition("-")[0]
        of_caller = of_kind and bool(act) and act in (mutant.caller or "")
        alike = sum(word in nodeid.partition("::")[2] for word in words)
        ranked.append((not of_caller, not of_kind, -alike, seen[_function(nodeid)] > 1, nodeid))
    return [nodeid for *_, nodeid in sorted(ranked, key=lambda one: one[:4])]
