"""The mutants of SQL: what is broken, for whom, and that every reason is of one that exists."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness_pipelines.buffers.postgres import newest
from harness_pipelines.drivers import postgres
from harness_pipelines_tests.bench import mutants as bench
from harness_pipelines_tests.bench.mutants import FIGURES, FILES
from harness_pipelines_tests.bench.mutation import functions
from harness_pipelines_tests.bench.mutation.edits import edits
from harness_pipelines_tests.bench.mutation.plan import COUNTED, FENCES, Mutant, mutants_of, texts
from harness_pipelines_tests.bench.mutation.reasons import REASONS
from harness_pipelines_tests.bench.mutation.watch import Watch


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT 1 FROM t ORDER BY a FOR NO KEY UPDATE OF q", ("lock", "SELECT 1 FROM t ORDER BY a")),
        ("SELECT pg_advisory_xact_lock(7, %(t)s)", ("lock", "SELECT NULL")),
        ("UPDATE t SET a = 1 WHERE b = %(b)s AND c", ("where", "UPDATE t SET a = 1 WHERE b = %(b)s AND (true OR (c))")),
        (
            "SELECT (SELECT x FROM u WHERE y = 'AND') FROM t WHERE a",
            ("where", "SELECT (SELECT x FROM u WHERE (true OR (y = 'AND'))) FROM t WHERE a"),
        ),
        ("SELECT 1 FROM t WHERE (a OR b)", ("or", "SELECT 1 FROM t WHERE ((false AND (a)) OR b)")),
        ("DELETE FROM t WHERE a <= b RETURNING c", ("compare", "DELETE FROM t WHERE a < b RETURNING c")),
        ("SELECT 1 FROM t ORDER BY a, b DESC LIMIT 1", ("order", "SELECT 1 FROM t ORDER BY a DESC, b LIMIT 1")),
        ("SELECT x(y ORDER BY z) FROM t", ("order", "SELECT x(y ORDER BY z DESC) FROM t")),
        ("UPDATE t SET a = greatest(a, 1)", ("bound", "UPDATE t SET a = least(a, 1)")),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", ("conflict", "INSERT INTO t VALUES (1)")),
        ("IF a <> b THEN RAISE 'x'; END IF;", ("if", "IF false AND (a <> b) THEN RAISE 'x'; END IF;")),
        ("IF a THEN b; ELSIF c THEN d; END IF;", ("if", "IF a THEN b; ELSIF false AND (c) THEN d; END IF;")),
        ("IF a AND b THEN c; END IF;", ("where", "IF (true OR (a)) AND b THEN c; END IF;")),
        ("SELECT 1 FROM t WHERE a OR b LIMIT 1", ("or", "SELECT 1 FROM t WHERE a OR (false AND (b)) LIMIT 1")),
        ("PERFORM harness.check_it(a, b); c;", ("call", "PERFORM 1; c;")),
    ],
)
def test_one_thing_of_a_statement_is_broken_and_the_rest_is_as_it_was(text: str, wanted: tuple[str, str]):
    assert wanted in [(one.kind, one.text) for one in edits(text)]


def test_a_lock_that_a_comment_names_is_none():
    assert edits("-- Not FOR UPDATE: a reader waits\nSELECT 1 FROM t") == []


def test_a_case_and_a_between_do_not_end_what_is_asked_for():
    text = "SELECT 1 FROM t WHERE CASE WHEN a AND b THEN c END AND d"
    assert [e.detail for e in edits(text) if e.kind == "where"] == ["CASE WHEN a AND b THEN c END", "d"]


def test_every_mutant_of_the_ledger_differs_from_its_statement_and_has_a_name_that_no_other_has():
    made = [m for file in FILES for s in texts(file) for m in mutants_of(f"{file}/{s}", ["x.f"])]
    assert len({m.name for m in made}) == len(made) > 500
    for one in made:
        file, _, section = one.statement.partition("/")
        assert one.kind == "count" or one.text != texts(file)[section], one.name


def test_a_function_is_what_the_last_migration_makes_of_it_and_runs_what_it_calls():
    bodies = functions.bodies()
    assert "of_move AND m.table_id = of_table" in bodies["advance_ingest"], "the first one has no such clause"
    assert functions.called("SELECT harness.state_commit(1)") == {"shows_cut", "state_commit", "state_renew"}
    assert functions.called("SELECT 1 FROM harness.states") == set()


def test_a_test_runs_a_function_by_a_statement_of_the_package_or_by_one_of_its_own():
    watch = Watch()
    asked: dict[str, Any] = {"__name__": "harness_pipelines.ledgers.x", "sql": postgres.sql}
    exec("def ask(): return sql('states/drop')", asked)
    with watch.installed():
        asked["ask"]()
    assert watch.seen == {("states/drop", "ledgers.x.ask"), ("functions/state_drop", "")}


def test_what_was_judged_counts_while_the_test_that_noticed_it_is_as_it_was():
    was = {"a.py": "1", "b.py": "2"}
    killed = {"killed": "a.py::test_x", "by": "1", "tests_were": bench._digest(was.values())}
    lived = {**killed, "killed": None, "by": None}
    assert bench._still(killed, was) and bench._still(lived, was)
    assert bench._still(killed, {**was, "b.py": "3"}) and not bench._still(lived, {**was, "b.py": "3"})
    assert not bench._still(killed, {**was, "a.py": "3"})
    assert not bench._still(killed, {"b.py": "2"})


def test_a_lock_is_taken_away_from_one_caller_at_a_time():
    made = [m.caller for m in mutants_of("ledger/lock_move", ["a.f", "b.g"]) if m.kind == "lock"]
    assert made == ["a.f", "b.g"]


def test_each_statement_that_is_named_and_each_reason_is_of_mutants_that_exist():
    named = {f"{file}/{s}" for file in FILES for s in texts(file)}
    assert named >= COUNTED | FENCES.keys()
    names = [m.name for one in named for m in mutants_of(one, ())] + [
        m.name for one in FENCES for m in mutants_of(one, ["x.f"])
    ]
    for pattern in REASONS:
        whole = re.compile(pattern.partition(" in ")[0])
        assert any(whole.fullmatch(name) for name in names), pattern


def test_the_loader_gives_a_mutant_to_the_package_alone_and_the_statement_again_afterwards():
    was = postgres.sql("reads/now")
    watch = Watch()
    watch.mutant = Mutant(statement="reads/now", kind="where", detail="", text="broken")
    asked: dict[str, Any] = {"__name__": "harness_pipelines.ledgers.x", "sql": postgres.sql}
    exec("def ask(): return sql('reads/now')", asked)
    with watch.installed():
        assert asked["ask"]() == "broken"
        assert postgres.sql("reads/now") == was
        assert watch.seen == {("reads/now", "ledgers.x.ask")}
    assert asked["ask"]() == was


def test_a_statement_that_the_package_keeps_is_broken_too_and_whole_again_afterwards():
    watch = Watch()
    with watch.installed():
        was = newest._statement()
        watch.mutant = Mutant(statement="reads/no_rows", kind="where", detail="", text="broken")
        assert "(broken)" in newest._statement()
        watch.mutant = None
        assert newest._statement() == was


def test_a_single_statement_can_be_asked_for_by_name():
    assert "ledger/lock_table" in FIGURES and "ledger/nothing" not in FIGURES and "nothing" not in FIGURES
    assert list(FIGURES) == list(FILES)
