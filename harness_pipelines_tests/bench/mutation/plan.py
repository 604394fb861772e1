"""The mutants of a statement: each edit of it, its lock once for each function that takes it, its count disbelieved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness_pipelines.drivers.postgres import sections
from harness_pipelines_tests.bench.mutation import functions
from harness_pipelines_tests.bench.mutation.edits import edits

#: Statements whose count of rows somebody judges; a mutant says that it was one row.
COUNTED = frozenset(
    {
        *("corrections/record_move", "evolve/record_move", "ledger/move_pointer", "ledger/start_table"),
        *("ledger/advance_stream_hi", "ledger/advance_batch_hi", "ledger/reach_ingest", "ledger/advance_ingest"),
        *("quarantine/follow", "quarantine/empty", "revert/put_back", "snapshots/drop"),
    }
)
#: Statements that fence by what they return or do; a mutant has the claim always held, or nobody fenced.
_HELD = (
    "SELECT %(table_id)s::int AS table_id, %(stage)s::text AS stage, %(shard)s::int AS shard, "
    "%(holder)s::uuid AS holder, %(epoch)s::bigint AS epoch, "
    "clock_timestamp() + interval '1 hour' AS lease_until, clock_timestamp() AS now"
)
FENCES: Mapping[str, str] = {
    "ledger/check_claim": _HELD,
    "reconcile/fence_all": "SELECT 1 WHERE %(table_id)s IS NULL",
    "revert/fence_claims": "SELECT 1 WHERE %(table_id)s IS NULL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One statement broken in one way, for all who run it or for one *caller*."""

    statement: str  #: file/section, or functions/name
    kind: str
    detail: str
    text: str  #: what is sent instead
    caller: str | None = None

    @property
    def name(self) -> str:
        return f"{self.statement}: {self.kind} {self.detail}" + (f" in {self.caller}" if self.caller else "")

    @property
    def file(self) -> str:
        return self.statement.partition("/")[0]

    @property
    def section(self) -> str:
        return self.statement.partition("/")[2]

    @property
    def digest(self) -> str:
        """Changes with the statement."""
        return hashlib.sha256(f"{self.name}\n{self.text}".encode()).hexdigest()[:16]


def texts(file: str) -> Mapping[str, str]:
    """{section: statement} of a SQL file, or {function: body}."""
    return functions.bodies() if file == functions.FILE else sections(file)


def mutants_of(statement: str, callers: Iterable[str]) -> list[Mutant]:
    """All mutants of *statement* (``file/section``), which *callers* run."""
    source, _, section = statement.partition("/")
    text = texts(source)[section]
    called = sorted(one for one in callers if one)
    made = []
    for edit in edits(text):
        by: list[str | None] = [*called] if edit.kind == "lock" and called else [None]
        made += [Mutant(statement=statement, kind=edit.kind, detail=edit.detail, text=edit.text, caller=c) for c in by]
    if statement in COUNTED:
        made.append(Mutant(statement=statement, kind="count", detail="of rows is not looked at", text=text))
    if fenced := FENCES.get(statement):
        made += [Mutant(statement=statement, kind="fence", detail="is left out", text=fenced, caller=c) for c in called]
    return made
