"""A spec that two apply and one evolves, beside a holder of ingest and a stand-by that find a new partition.

Everybody has read the table before he writes: the spec has its columns (1, or 2 after the change) and who set what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.schema.schemas import check_columns, check_schema, check_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ClaimRow
from harness_pipelines_tests.model.explorer import Step

WORDS = ({"on_error": "stop"}, {"unknown_fields": "quarantine"})  #: what each of the two applies
EPOCH_NOW = 2


class Spec(NamedTuple):
    columns: int = 1
    settings: tuple[bool, bool] = (False, False)


class Writer(NamedTuple):
    """One who changes the spec; *read* is the spec that he saw."""

    read: Spec | None = None
    done: bool = False


class State(NamedTuple):
    spec: Spec
    schema: int
    positions: tuple[int, ...]  #: by partition the schema that it is ingested in; one joins
    appliers: tuple[Writer, Writer]
    evolver: Writer
    holders: tuple[int, int]  #: the schema that a fenced holder and the present one know; 0: not loaded
    lost: bool  #: somebody wrote over what he had not read
    fenced_joined: bool


@cache
def _spec(one: Spec) -> TableSpec:
    columns = dict.fromkeys(["id", "more"][: one.columns], "long")
    words = {word: value for on, said in zip(one.settings, WORDS, strict=True) if on for word, value in said.items()}
    return TableSpec.model_validate({"table": "a.b", "columns": columns, "views": "stream", **words})


@cache
def _moved(read: Spec, found: Spec) -> str | None:
    return build.verdict(lambda: check_spec("a.b", read=_spec(read), found=_spec(found), what="it"))


@cache
def _disagrees(spec: Spec, schema: int) -> str | None:
    fields = iceberg_fields(_spec(Spec(columns=schema)).stored)
    return build.verdict(lambda: check_columns(_spec(spec), fields=fields, schema_version=schema))


@dataclass(frozen=True, slots=True)
class Specs:
    """*bad* names what is left out or done wrong (see `mutants`)."""

    bad: frozenset[str] = frozenset()
    name: str = "specs: two apply, one evolves, a partition joins"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "an apply has read the spec before the change": lambda s: any(
                w.read is not None and w.read.columns < s.spec.columns for w in s.appliers
            ),
            "the change was planned before an apply": lambda s: (
                s.evolver.read is not None and s.evolver.read.settings != s.spec.settings
            ),
            "a holder knows the schema before": lambda s: 0 < s.holders[1] < s.schema and len(s.positions) == 1,
            "a partition has joined after the change": lambda s: s.positions == (2, 2),
        }

    def first(self) -> State:
        return State(Spec(), 1, (1,), (Writer(), Writer()), Writer(), (0, 0), False, False)

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        if _disagrees(s.spec, s.schema):
            return f"S21: the spec has {s.spec.columns} columns, the schema {s.schema}"
        if set(s.positions) != {s.schema}:
            return f"S22: partitions are ingested in {list(s.positions)}, the schema in force is {s.schema}"
        if s.lost:
            return "S22: a spec was written over another one than was read"
        return "S5: a fenced holder let a partition join" if s.fenced_joined else None

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        return s == s._replace(
            spec=Spec(2, (True, True)), schema=2, positions=(2, 2), appliers=(Writer(None, True),) * 2
        )

    def show(self, s: State) -> str:
        return f"{s.spec} schema {s.schema} positions {list(s.positions)} {s.appliers} {s.evolver} {s.holders}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        for i, writer in enumerate(s.appliers):
            for what, then in self._apply(s, i, writer):
                yield Step(f"person{i + 1}", what, then)
        for what, then in self._evolve(s, s.evolver):
            yield Step("evolve", what, then)
        for i, known in enumerate(s.holders):
            if known != s.schema:
                loaded = (s.schema, s.holders[1]) if i == 0 else (s.holders[0], s.schema)
                yield Step(f"w{i + 1}", "ingest.load", s._replace(holders=loaded))
            if known and len(s.positions) == 1:
                yield Step(f"w{i + 1}", *self._join(s, i, known))

    def _apply(self, s: State, i: int, w: Writer) -> Iterator[tuple[str, State]]:
        if w.done:
            return
        if w.read is None:
            yield "apply.read", _applier(s, i, Writer(s.spec))
            return
        if _moved(w.read, s.spec) and "spec_not_compared" not in self.bad:
            yield "apply.refused", _applier(s, i, Writer())
            return
        mine = (True, w.read.settings[1]) if i == 0 else (w.read.settings[0], True)
        wanted = Spec(w.read.columns, mine)
        if _disagrees(wanted, s.schema) and "columns_unchecked" not in self.bad:
            yield "apply.refused", _applier(s, i, Writer())
            return
        written = _applier(s, i, Writer(None, True))._replace(spec=wanted, lost=s.lost or w.read != s.spec)
        yield "apply.write", written

    def _evolve(self, s: State, w: Writer) -> Iterator[tuple[str, State]]:
        if w.read is None and s.schema == 1:
            yield "evolve.read", s._replace(evolver=Writer(s.spec))
        if w.read is None:
            return
        planned = w.read.columns
        if build.verdict(lambda: check_schema("a.b", planned=planned, found=s.schema, what="it")) or (
            _moved(w.read, s.spec) and "evolve_writes_what_it_read" not in self.bad
        ):
            yield "evolve.read_again", s._replace(evolver=Writer())
            return
        positions = tuple(2 for _ in s.positions)
        made = s._replace(spec=Spec(2, w.read.settings), schema=2, positions=positions, evolver=Writer())
        yield "evolve.write", made._replace(lost=s.lost or w.read != s.spec)

    def _join(self, s: State, i: int, known: int) -> tuple[str, State]:
        """In the schema in force, by the claim: the first of the two has slept through a take-over."""
        is_fenced = build.fenced_out(i, i + 1, ClaimRow(1, EPOCH_NOW, True)) is not None
        if is_fenced and "joins_without_claim" not in self.bad:
            return "ingest.join FencedOut", s._replace(holders=(0, s.holders[1]))
        schema = known if "joins_as_the_holder_knows" in self.bad else s.schema
        return "ingest.join", s._replace(positions=(*s.positions, schema), fenced_joined=s.fenced_joined or is_fenced)


def _applier(s: State, i: int, one: Writer) -> State:
    return s._replace(appliers=(one, s.appliers[1]) if i == 0 else (s.appliers[0], one))
