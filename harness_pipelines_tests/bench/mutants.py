"""The bench of the ledger's SQL: each lock, fence, comparison and order is broken in turn, and a test must notice.

The suites of `SUITES` run once, to see which test executes which statement; then, mutant after mutant, the quickest
tests that execute it. Functions inside of the database are broken like statements. What was judged is kept in the
home, by the code that it was judged for: a run that was ended goes on, and after a change of tests only what they
noticed, or what nobody did, is judged again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness_pipelines.services import Services
from harness_pipelines_tests.bench.base import Figure, Group, Run
from harness_pipelines_tests.bench.mutation import functions
from harness_pipelines_tests.bench.mutation.plan import texts
from harness_pipelines_tests.bench.mutation.plugin import SAID
from harness_pipelines_tests.bench.mutation.reasons import reason

SUITES = ("contract",)
LEFT_OUT = ("contract/test_log.py", "contract/test_stateful.py")  #: Kafka's side; longer than many budgets
#: By importance. Files that only show things (overview, watch, fsck, audit, lineage) are judged by their own suites.
FILES = (
    *("ledger", "buffer", "reads", "upkeep", "corrections", "revert", "evolve", "snapshots", "reconcile", "quarantine"),
    *("states", "recalls", "recluster", "overlays", "history", "digests", "drop", "mirrors", "doctor"),
    functions.FILE,
)
BUDGET_S, QUICK_BUDGET_S = 15.0, 3.0  #: of tests for one mutant; one that lives longer has survived
TEST_S = 40  #: a mutant without a lock may let a test hang
TESTS = Path(__file__).parents[1]


class Statements(Mapping[str, Group]):
    """A group per SQL file; ``file/statement`` is one of its own, for whoever asks for it."""

    def __getitem__(self, name: str) -> Group:
        file, _, section = name.partition("/")
        if file not in FILES or (section and section not in texts(file)):
            raise KeyError(name)
        return partial(_measure, name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(FILES)

    def __len__(self) -> int:
        return len(FILES)


FIGURES: Mapping[str, Group] = Statements()


def _measure(run: Run, *, name: str) -> Sequence[Figure]:
    file, _, section = name.partition("/")
    wanted = [f"{file}/{one}" for one in texts(file) if section in {"", one}]
    judged = judge(run.harness.settings.home, wanted, budget_s=QUICK_BUDGET_S if run.quick else BUDGET_S, say=run.say)
    killed = [one["name"] for one in judged if one["killed"]]
    lived = [one["name"] for one in judged if not one["killed"]]
    excused = {one: why for one in lived if (why := reason(one))}
    survived = [one for one in lived if one not in excused]
    run.note(f"{name}.mutants", len(judged), "mutants")
    run.note(f"{name}.killed", len(killed), "mutants")
    run.note(f"{name}.excused", len(excused), "mutants")
    for one in survived:
        run.note(f"survived: {one}", 1, "mutant")
    for one, why in excused.items():
        run.note(f"excused: {one}: {why}", 1, "mutant")
    return [Figure(figure=f"{name}.survived", value=len(survived), unit="mutants", goal=0, sense="<=")]


def judge(
    home: Path, statements: Sequence[str], *, budget_s: float, say: Callable[[str], None]
) -> Sequence[Mapping[str, Any]]:
    """What became of each mutant of *statements*: those of before are not judged again."""
    folder, tests = home / "mutants" / _code(), _tests()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "judged.jsonl"
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {one["digest"]: one for one in found if _still(one, tests)}
    task = {
        "covered": str(folder / "covered.json"),
        "files": tests,
        "statements": list(statements),
        "judged": [digest for digest, one in known.items() if one["killed"] or one["budget_s"] >= budget_s],
        "budget_s": budget_s,
    }
    with tempfile.TemporaryDirectory() as place, kept.open("a") as out:
        path = Path(place) / "task.json"
        path.write_text(json.dumps(task))
        for told in _run(path, home=home, say=say):
            told |= {"tests_were": _digest(tests.values())}
            known[told["digest"]] = told
            print(json.dumps(told), file=out, flush=True)
            if not told["killed"]:
                say(f"lives: {told['name']}")
    return [one for one in known.values() if one["statement"] in set(statements)]


def _run(task: Path, *, home: Path, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """What the plugin says of each mutant, as it is judged."""
    words = [
        "-q",
        "-o",
        "addopts=--import-mode=importlib",
        "-m",
        "not long",
        "-p",
        "no:randomly",
        f"--timeout={TEST_S}",
    ]
    words += ["-p", "harness_pipelines_tests.bench.mutation.plugin", f"--mutants-task={task}"]
    words += [str(TESTS / one) for one in SUITES] + [f"--ignore={TESTS / one}" for one in LEFT_OUT]
    Services(home).up()  # else the first tests take that time, and fail by their limit without a mutant
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, "HARNESS_TEST_HOME": str(home)},
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-30:], line]
            if line.startswith(SAID + "{"):
                yield json.loads(line.removeprefix(SAID))
            elif line.startswith(SAID):
                say(line.removeprefix(SAID).strip())
        if process.wait() not in {0, 1}:  # tests fail, that is what they are for
            raise RuntimeError(f"the tests ended with code {process.returncode}:\n{''.join(last)}")
    finally:
        process.terminate()
        process.wait()


def _still(judged: Mapping[str, Any], tests: Mapping[str, str]) -> bool:
    """Whether it is as it was judged: the test that noticed it is, or where none did, all of them."""
    killed: str | None = judged["killed"]
    was, now = (
        (judged["tests_were"], _digest(tests.values())) if killed is None else (judged["by"], tests.get(_file(killed)))
    )
    return bool(was == now)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _tests() -> dict[str, str]:
    """{file of tests, or of what chooses among them: its digest}."""
    found = [*(p for one in SUITES for p in _sources(one, "test_*.py")), *_sources("bench/mutation", "p*.py")]
    return {str(path.relative_to(TESTS.parent)): _digest([path.read_text()]) for path in found}


def _code() -> str:
    """Changes with the package, and with what the tests share."""
    package = Path(str(files("harness_pipelines")))
    shared = [p for one in SUITES for p in _sources(one, "*.py") if not p.name.startswith("test_")]
    sources = sorted([*package.rglob("*.py"), *package.rglob("*.sql")]) + shared
    return _digest(text for path in sources for text in (path.name, path.read_text()))


def _sources(suite: str, pattern: str) -> list[Path]:
    return sorted((TESTS / suite).rglob(pattern))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
