"""A keyed table in memory that moves in every way, and the cuts that one server makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from harness_pipelines.ports.serving.cuts import Cut, CutOvertaken
from harness_pipelines.protocol.cuts import Chunk, CutBounds
from harness_pipelines.protocol.key_hashes import Keys, hasher
from harness_pipelines.protocol.keyed_cuts import Cold
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read.keyed_cut import KeyedCuts
from harness_pipelines.spec.table import ServeRules
from harness_pipelines_tests.unit.read.keyed import SCHEMA, Record, Tiers, replay

AT = datetime(2026, 1, 2, tzinfo=UTC)
PARTITIONS = (0, 1)
Place = tuple[str, int]


def key_of(number: int) -> tuple[int | None, str | None]:
    """A key of two columns, of which one may be NULL; even numbers live in partition 0, odd ones in 1."""
    return (None, f"{number}") if number % 3 == 0 else (number, None if number % 5 == 0 else f"{number}")


@dataclass(frozen=True)
class View:
    """The batch view of one version."""

    files: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    hidden: Mapping[str, frozenset[int]] = field(default_factory=dict)  #: by it, places in its files
    recalled: tuple[Record, ...] = ()
    generation: int = 0

    def live(self) -> dict[Place, Record]:
        return {
            (path, at): record
            for path, records in self.files.items()
            for at, record in enumerate(records)
            if at not in self.hidden.get(path, ())
        }


@dataclass(frozen=True)
class State:
    """What a version fixes, and what is above it."""

    view: View = View()
    batch_hi: Mapping[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    stream_hi: Mapping[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))


class World:
    """Moves a table, and makes cuts of it."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.high = dict.fromkeys(PARTITIONS, 0)
        self.state, self.states = State(), [State()]
        self.version, self.schema, self.sequence = 1, 1, 0
        self.chunks: dict[str, list[dict[str, Any]]] = {}
        self.deletes: dict[str, dict[str, list[int]]] = {}
        self.written = self.rows_written = self.searched = 0
        self.newest: Cut | None = None
        self.own: Cut | None = None
        self.gone: set[int] = set()  #: sequences of cuts whose rows the ledger has not any more
        self.hot_rows = 1_000_000
        self.server()

    def server(self) -> None:
        """Another process makes the cuts from now on."""
        self.cuts: Any = KeyedCuts(self.stores, keep=timedelta(hours=1), check=lambda cut: None)

    @property
    def stores(self) -> Any:
        tiers = self.tiers
        with tiers.reader() as reader:
            return SimpleNamespace(
                buffer_reader=reader.buffer, lake_reads=reader.lake, cuts=self, cut_files=self, batch_keys=self
            )

    @property
    def tiers(self) -> Tiers:
        s = self.state
        return Tiers(
            log=self.log, batch_hi=s.batch_hi, stream_hi=s.stream_hi, buffer_hi=self.high, end=self.high, cold=()
        )

    # -- the table ------------------------------------------------------------------------------------------

    def produce(self, number: int, v: int | None) -> None:
        p = number % 2
        a, b = key_of(number)
        self.log.append(Record(a, b, v, p, self.high[p], op="put" if v is not None else "delete"))
        self.high[p] += 1

    def skip(self, partition: int) -> None:
        """An offset without a row: a record that was refused, or a transaction's end."""
        self.high[partition] += 1

    def tier(self, partition: int, count: int) -> None:
        hi = min(self.high[partition], self.state.stream_hi[partition] + count)
        self._becomes(replace(self.state, stream_hi={**self.state.stream_hi, partition: hi}))

    def merge(self, partition: int, count: int) -> None:
        """Newer versions hide older ones where they are, in files or in recalled rows."""
        s = self.state
        low = s.batch_hi[partition]
        hi = min(s.stream_hi[partition], low + count)
        if hi == low:
            return
        mine = [r for r in self.log if r.partition == partition and low <= r.offset < hi]
        newest = {r.key: r for r in mine}
        was_recalled = {r.key for r in s.view.recalled}
        view = self._hide(s.view, [at for at, r in s.view.live().items() if r.key in newest])
        recalled = [r for r in view.recalled if r.key not in newest]
        puts = [r for r in newest.values() if r.op == "put"]
        recalled += [r for r in puts if r.key in was_recalled]
        view = self._add(view, [r for r in puts if r.key not in was_recalled])
        if recalled != list(view.recalled):
            view = replace(view, recalled=tuple(recalled), generation=self.version + 1)
        self._becomes(State(view=view, batch_hi={**s.batch_hi, partition: hi}, stream_hi=s.stream_hi))

    def rewrite(self, paths: Collection[int]) -> None:
        """Write the live rows of some files to a new one."""
        view = self.state.view
        names = [path for at, path in enumerate(view.files) if at in paths]
        rows = [r for (path, _), r in view.live().items() if path in names]
        left = {path: rows for path, rows in view.files.items() if path not in names}
        hidden = {path: places for path, places in view.hidden.items() if path not in names}
        self._becomes(replace(self.state, view=self._add(replace(view, files=left, hidden=hidden), rows[::-1])))

    def recall(self, number: int) -> None:
        """Move the row of a key to Postgres."""
        view = self.state.view
        found = {at: r for at, r in view.live().items() if r.key == key_of(number)}
        if found:
            hidden = self._hide(view, list(found))
            rows = (*view.recalled, *found.values())
            self._becomes(replace(self.state, view=replace(hidden, recalled=rows, generation=self.version + 1)))

    def revert(self, to: int) -> None:
        self._becomes(self.states[to % len(self.states)])

    def begin_again(self) -> None:
        """The batch view is empty, and is merged again from the stream view."""
        nothing = dict.fromkeys(PARTITIONS, 0)
        self._becomes(State(batch_hi=nothing, stream_hi=self.state.stream_hi))

    def evolve(self) -> None:
        self.schema += 1
        self._becomes(self.state)

    def _becomes(self, state: State) -> None:
        self.state, self.version = state, self.version + 1
        self.states.append(state)

    def _hide(self, view: View, places: Sequence[Place]) -> View:
        hidden = {path: set(known) for path, known in view.hidden.items()}
        for path, at in places:
            hidden.setdefault(path, set()).add(at)
        return replace(view, hidden={path: frozenset(known) for path, known in hidden.items()})

    def _add(self, view: View, rows: Sequence[Record]) -> View:
        if not rows:
            return view
        name = f"f{len(self.states)}-{self.version}"
        return replace(view, files={**view.files, name: tuple(rows)})

    # -- cuts -----------------------------------------------------------------------------------------------

    @property
    def bounds(self) -> CutBounds:
        s = self.state
        return {p: (0, s.batch_hi[p], s.stream_hi[p], self.high[p]) for p in PARTITIONS}

    def plan(self) -> ReadPlan:
        plan = self.tiers.plan
        lake = [replace(p, metadata=f"view {self.version}") if p.view == "batch" else p for p in plan.lake]
        return replace(plan, lake=tuple(lake), tail=None, schema_version=self.schema, version=self.version)

    def make(self) -> list[Chunk]:
        self.cuts._stores = self.stores
        recalled = self.recalled_chunk()
        self.maker = self.cuts.maker(
            self.looked(),
            self.bounds,
            self.newest,
            maker=f"schema {self.schema}",
            recalled=[recalled] if recalled else [],
            check=lambda: None,
        )
        return list(self.maker.chunks())

    def looked(self) -> Any:
        spec = SimpleNamespace(serve=ServeRules(hot_rows=self.hot_rows))
        table = SimpleNamespace(name="t.keyed", spec=spec, intake=SimpleNamespace(buffered=True))
        return SimpleNamespace(table=table, plan=self.plan(), state=SimpleNamespace(version=None))

    def recalled_chunk(self) -> Chunk | None:
        view = self.state.view
        if not view.recalled:
            return None
        path = f"recalled {view.generation}"
        self.chunks[path] = [r.row for r in view.recalled]
        return self._chunk(path, len(view.recalled), "recalled")

    def publish(self, chunks: Sequence[Chunk]) -> None:
        """As the ledger and the lake do it: what is new has the cut's number."""
        self.sequence += 1
        known = {c.path: c for c in self.own.chunks} if self.own else {}
        named = tuple(known.get(c.path) or replace(c, sequence=self.sequence) for c in chunks)
        self.newest = self.own = cut_of(self.sequence, named, version=self.version)
        self.maker.published(self.own)

    def merged(self, table: object, *, above: int, below: int) -> dict[int, int]:
        between = self.states[above : below - 1]  # the first state is that of version 1
        return {p: max(s.batch_hi[p] for s in between) for p in PARTITIONS} if between else {}

    def overtaken(self, *, gone: bool) -> None:
        """Another server publishes a cut with files of its own; *gone*: the row of ours is no more, and its files."""
        self.sequence += 1
        self.newest = cut_of(self.sequence, (), version=self.version)
        if gone and self.own:
            self.gone.add(self.own.sequence)
            self.chunks.clear()
            self.deletes.clear()

    def assert_exact(self, chunks: Sequence[Chunk]) -> None:
        """A reader of the cut finds each newest put, once; and rows are hidden that are there, once."""
        rows = {at: r.row for at, r in self.state.view.live().items()}
        for chunk in chunks:
            rows |= {(chunk.path, at): row for at, row in enumerate(self.chunks.get(chunk.path, ()))}
        hidden = [
            (path, at) for chunk in chunks for path, places in self.deletes.get(chunk.path, {}).items() for at in places
        ]
        assert len(set(hidden)) == len(hidden), "a row is hidden twice"
        assert set(hidden) <= rows.keys(), "a row is hidden that is not there"
        shown = Counter(
            (row["_kafka_partition"], row["_kafka_offset"]) for at, row in rows.items() if at not in set(hidden)
        )
        truth = Counter((r.partition, r.offset) for r in replay(self.log, self.high))
        assert shown == truth

    def cut(self) -> list[Chunk]:
        chunks = self.make()
        self.assert_exact(chunks)
        self.publish(chunks)
        return chunks

    # -- ports ----------------------------------------------------------------------------------------------

    def serve(self, cut: Cut, *, keep: timedelta) -> None:
        if cut.sequence in self.gone:
            raise CutOvertaken("it is gone")

    def write_chunk(
        self,
        table: Any,
        version: Any,
        rows: pa.Table,
        *,
        ranges: Mapping[int, tuple[int, int]],
        maker: str,
        sequence: int,
    ) -> Chunk:
        path = self._name("chunk")
        self.chunks[path] = rows.to_pylist()
        places = [(r["_kafka_partition"], r["_kafka_offset"]) for r in self.chunks[path]]
        assert places == sorted(places)
        assert all(ranges[p][0] <= o < ranges[p][1] for p, o in places)
        self.rows_written += len(places)
        return self._chunk(path, rows.num_rows, maker)

    def write_hidden(self, table: Any, version: Any, hidden: Mapping[str, Any], *, sequence: int) -> Chunk:
        path = self._name("deletes")
        self.deletes[path] = {file: places.tolist() for file, places in hidden.items()}
        assert all(places == sorted(set(places)) and places for places in self.deletes[path].values())
        self.rows_written += sum(map(len, self.deletes[path].values()))
        return self._chunk(path, 1, "hides")

    def read_chunk(self, table: Any, plan: Any, chunk: Chunk) -> pa.Table:
        return pa.Table.from_pylist(self.chunks[chunk.path], schema=SCHEMA)

    def files(self, plan: Any) -> Mapping[str, str]:
        view = self.state.view
        return {path: str(sorted(view.hidden.get(path, ()))) for path in sorted(view.files)}

    def find(self, plan: Any, values: pa.Table, keys: Keys, *, among: Collection[int] | None) -> Cold:
        assert sorted(zip(*hasher().of(values.columns).tolist(), strict=True)) == list(zip(*keys.tolist(), strict=True))
        wanted = set(zip(*keys.tolist(), strict=True))
        self.searched += len(wanted)
        view, found = self.state.view, []
        for number, path in enumerate(sorted(view.files)):
            if among is None or number in among:
                records = view.files[path]
                of = zip(
                    *hasher()
                    .of(pa.Table.from_pylist([r.row for r in records], schema=SCHEMA).select(["a", "b"]).columns)
                    .tolist(),
                    strict=True,
                )
                hidden = view.hidden.get(path, ())
                found += [
                    (number, at, at not in hidden, records[at].partition, *one)
                    for at, one in enumerate(of)
                    if one in wanted
                ]
        files, places, live, partitions = (np.array([one[at] for one in found], np.int64) for at in range(4))
        return Cold(
            keys=np.array([one[4:] for one in found], np.uint64).reshape(-1, 2).T.copy(),
            files=files,
            places=places,
            live=live.astype(np.bool_),
            partitions=partitions,
        )

    def live(self, plan: Any, cold: Cold) -> Any:
        paths, hidden = sorted(self.state.view.files), self.state.view.hidden
        of = zip(cold.files.tolist(), cold.places.tolist(), strict=True)
        return np.array([at not in hidden.get(paths[file], ()) for file, at in of], np.bool_)

    def _name(self, kind: str) -> str:
        self.written += 1
        return f"{kind} {self.written}"

    def _chunk(self, path: str, rows: int, maker: str) -> Chunk:
        return Chunk(path=path, ranges={}, rows=rows, bytes=100 * rows, sequence=0, maker=maker, entry="")


def cut_of(sequence: int, chunks: tuple[Chunk, ...], *, version: int) -> Cut:
    return Cut(
        snapshot_id=sequence, sequence=sequence, timestamp_ms=0, version=version, schema_version=1, bounds={},
        metadata="", chunks=chunks, table_id=1, looked_at=AT, published_at=AT, served_at=AT, until=AT,
    )  # fmt: skip
