"""Rules of fsck for the lake: files of versions exist and hold the rows of their moves."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from harness_pipelines.audit.fsck.rule import (
    Look,
    Objection,
    Taken,
    ViewSeen,
    adopted_in,
    by_partition,
    named_versions,
    rule,
    spelled,
)
from harness_pipelines.ports.files import FileSeen, MetadataSeen, SnapshotSeen
from harness_pipelines.ports.table_state import SHOWN_MAX, Books, MoveRow, VersionRow
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE, RANGES, SCHEMA_VERSION
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.protocol.versions import ViewName


def named_locations(books: Books, view: ViewName) -> list[str]:
    """Metadata files of *view* that must be there, the catalog's present one among them."""
    named = [v.views[view].metadata for v in named_versions(books).values() if view in v.views]
    return list(dict.fromkeys([*named, *([books.pointers[view]] if view in books.pointers else [])]))


@rule(
    "S10", "what retained versions, leases, cuts, open moves and foreign catalogs name exists and can be read", "lake"
)
def reached_files(look: Look) -> Iterator[Objection]:
    who: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
    for view in look.views.values():
        for number, version in look.named_versions.items():
            for kind, file in view.survey.lost(version.views[view.name].metadata) if view.name in version.views else ():
                who[kind, file.path, file.why].add(number)
        for kind, file in view.survey.lost(view.pointer) if view.pointer is not None else ():
            who[kind, file.path, file.why].update()
    for (kind, path, why), versions in sorted(who.items()):
        needed = f"version {spelled(versions)}" if versions else "the catalog's present state"
        yield Objection(path, f"{kind} {path}: {why}; {needed} needs it")


@rule("S7", "the catalog names what the newest version published, and no other writer's snapshot", "lake")
def pointer_is_the_heads(look: Look) -> Iterator[Objection]:
    for view in look.views.values():
        if view.pointer is None:
            way = f"`harness revert {look.books.name} --to HEAD --yes` restores it"
            yield Objection(f"pointer of {view.name}", f"the catalog has no view {view.title}; {way}")
            continue
        current = view.survey.metadata[view.pointer]
        if view.head is None or not isinstance(current, MetadataSeen) or current.snapshot == view.head.snapshot:
            continue
        foreign = [
            s for s in current.snapshots.values() if _is_main(s, current) and not _is_known(s, look.books, view.name)
        ]
        shown = "; ".join(map(_spelled, foreign[:SHOWN_MAX]))
        assert look.head is not None
        yield Objection(
            f"pointer of {view.name}",
            f"main of {view.title} is at snapshot {current.snapshot}, version {look.head.version} published "
            f"{view.head.snapshot}" + (f"; not of the harness: {shown}" if shown else ""),
        )


def _spelled(snapshot: SnapshotSeen) -> str:
    told = snapshot.summary
    rows, writer = told.get("added-records", "0"), told.get("engine-name", "another writer")
    return f"snapshot {snapshot.snapshot} ({told.get('operation', '?')} of {rows} rows by {writer})"


def _is_main(snapshot: SnapshotSeen, current: MetadataSeen) -> bool:
    """Only main is the harness's alone to publish on: branches are drafts."""
    at, seen = current.snapshot, set()
    while at is not None and at in current.snapshots and at not in seen:
        if at == snapshot.snapshot:
            return True
        seen.add(at)
        at = current.snapshots[at].parent
    return False


def _is_known(snapshot: SnapshotSeen, books: Books, view: ViewName) -> bool:
    published = (v.views[view].snapshot for v in books.versions if view in v.views)
    return MOVE in snapshot.summary or snapshot.snapshot in published


@rule("S28", "every move that the newest metadata files name is in the ledger, by number and nonce", "lake")
def history_is_whole(look: Look) -> Iterator[Objection]:
    if look.forgotten:
        shown = ", ".join(str(one.move_id) for one in look.forgotten[-SHOWN_MAX:])
        yield Objection(
            "history",
            f"history lost: the lake names move {shown}, which this ledger does not have: it was restored from an "
            f"older backup, or a stand-by was promoted that lacked it; `harness reconcile {look.books.name} --yes` "
            "continues",
        )


@rule("S28", "a version's snapshots say by their summaries which move, attempt and ranges made them", "lake")
def summaries_agree(look: Look) -> Iterator[Objection]:
    moves = {m.move_id: m for m in look.books.moves}
    for view in look.views.values():
        for number, version in sorted(look.named_versions.items()):
            if view.name not in version.views:
                continue
            metadata, pinned = view.survey.metadata[version.views[view.name].metadata], version.views[view.name]
            if not isinstance(metadata, MetadataSeen):
                continue
            where = f"version {number}"
            if metadata.snapshot != pinned.snapshot or metadata.head is None:
                yield Objection(
                    f"{where} of {view.title}",
                    f"in the {view.name} view {where} is snapshot {pinned.snapshot}, its metadata file has "
                    f"{metadata.snapshot}",
                )
            elif (move := moves.get(version.move_id or 0)) is not None:
                yield from _made_by(look, view, version, metadata.head.summary, move)


def _made_by(
    look: Look, view: ViewSeen, version: VersionRow, summary: Mapping[str, str], move: MoveRow
) -> Iterator[Objection]:
    where = f"version {version.version}"
    if version.revert_of is not None:
        if (found := summary.get(MOVE)) != str(move.move_id):
            yield Objection(where, f"{where} is revert {move.move_id}, its snapshot was made by move {found}")
    elif version.version in look.books.begun and not move.ranges:
        return  # it begins a history with what the version before it had
    elif _writes(look, move, view.name) and (wrong := _differences(summary, move)):
        yield Objection(where, f"{where}, move {move.move_id}: {wrong}")


def _writes(look: Look, move: MoveRow, view: ViewName) -> bool:
    """Return whether *move* made the snapshot of *view*; a move that reconcile took over covers all lost ones."""
    effects = {str(stage): effect.view for stage, effect in view_set_of(look.books.spec).effects.items()}
    return effects.get(move.stage) == view and adopted_in(move) is None


def _differences(summary: Mapping[str, str], move: MoveRow) -> str:
    ranges = ",".join(f"{p}:{low}-{high}" for p, (low, high) in move.ranges.items())
    expected = {
        MOVE: str(move.move_id),
        ATTEMPT: str(move.attempt),
        SCHEMA_VERSION: str(move.schema_version),
        RANGES: ranges,
        "added-records": str(move.rows or 0),
    }
    found = {**summary, "added-records": summary.get("added-records", "0")}
    return "; ".join(
        f"{word} is {found.get(word)!r} in the snapshot, {value!r} in the ledger"
        for word, value in expected.items()
        if found.get(word) != value
    )


@rule("S11", "only the harness removes files of its views", "lake")
def nobody_else_removes(look: Look) -> Iterator[Objection]:
    for view in look.views.values():
        current = view.survey.metadata.get(view.pointer or "")
        if not isinstance(current, MetadataSeen):
            continue
        for word in ("gc.enabled", "write.metadata.delete-after-commit.enabled"):
            if (found := current.properties.get(word)) != "false":
                yield Objection(
                    f"{word} of {view.name}",
                    f"the {view.name} view's property {word} is {found or 'not set'}: other engines may remove files",
                )


@rule(
    "S26",
    "deletes are of positions, one file for a live data file, of a merge of keys or of rows decoded again",
    "lake",
)
def deletes_of_live_files(look: Look) -> Iterator[Objection]:
    for view in look.views.values():
        replaced = any(one.hides for one in look.books.corrected)
        may_have = replaced or (bool(look.books.spec.key) and view.name == "batch")
        live, seen = {file.path: file.rows for file in view.data_files}, set[str]()
        for file in view.files:
            if file.deletes is None:
                continue
            told = f"{file.deletes} delete file {file.path} with {file.rows:,} rows"
            if not may_have or file.deletes_of is None:
                yield Objection(file.path, told)
            elif file.deletes_of not in live:
                yield Objection(file.path, f"{told}: {file.deletes_of} is not live")
            elif file.deletes_of in seen:
                yield Objection(file.path, f"{told}: {file.deletes_of} has another one")
            elif file.rows > live[file.deletes_of]:
                yield Objection(file.path, f"{told}: {file.deletes_of} has {live[file.deletes_of]:,} rows")
            seen.add(file.deletes_of or "")


@rule("S1", "no file is in the head twice", "lake")
def files_once(look: Look) -> Iterator[Objection]:
    for view in look.views.values():
        for path, count in Counter(file.path for file in view.data_files).items():
            if count > 1:
                yield Objection(path, f"{path} is live {count} times: its rows are doubled")


@rule("S20", "a compaction, a relayout, a recall or a release leaves as many rows in its view as there were", "lake")
def rewrites_keep_rows(look: Look) -> Iterator[Objection]:
    """Counts alone, by manifest lists; which rows they are is the audit's, and that bounds stay is seen by S9.

    Rows of the batch view that lie in Postgres are rows of it.
    """
    moves = {m.move_id: m for m in look.books.moves if not m.lo}
    for view in look.views.values():
        for before, after in pairwise(look.books.versions):
            move = moves.get(after.move_id or 0)
            if move is None or not _writes(look, move, view.name) or after.version != before.version + 1:
                continue
            had, has = (_rows(view, version) for version in (before, after))
            if had is not None and has is not None and had != has:
                where = f"version {after.version}, {move.stage} move {move.move_id}"
                yield Objection(
                    where, f"{where} has {has:,} rows in {view.title}, version {before.version} had {had:,}"
                )


def _rows(view: ViewSeen, version: VersionRow) -> int | None:
    in_files = view.survey.rows(version.views[view.name].metadata) if view.name in version.views else None
    recalled = sum(one.rows for one in version.overlays) if view.name == "batch" else 0
    return None if in_files is None else in_files + recalled


# -- the stream view ----------------------------------------------------------------------------------------


@rule("S29", "every live file lies inside what tier moved, of one partition, with its offsets", "lake")
def files_inside_bounds(look: Look) -> Iterator[Objection]:
    head = {} if look.head is None else look.head.bounds
    for file in by_partition(_stream_files(look)):
        if file.partition is None or file.low is None or file.high is None:
            yield Objection(
                file.path, f"{file.path} has no Kafka partition or no bounds of its offsets: not of the harness"
            )
        elif file.partition < 0:  # rows of another writer that were accepted
            continue
        elif (cut := head.get(file.partition)) is None:
            yield Objection(file.path, f"{file.path} holds partition {file.partition}, which the table does not have")
        elif file.low < cut.start:
            yield Objection(
                file.path,
                f"{file.path} holds offset {file.low} of partition {file.partition}, which starts at {cut.start}",
            )


@rule("S37", "no live file of the stream head holds an offset at or above stream_hi", "lake")
def files_below_stream_hi(look: Look) -> Iterator[Objection]:
    for file in by_partition(_stream_files(look)):
        row = look.books.positions.get(-1 if file.partition is None else file.partition)
        if row is None or file.high is None or row.stream_hi is None:
            continue
        if file.high >= row.stream_hi:
            yield Objection(
                file.path,
                f"{file.path} holds offset {file.high} of partition {file.partition}, stream_hi is {row.stream_hi}",
            )


@rule("S31", "the files of a move hold the rows that the move counted", "lake")
def move_rows(look: Look) -> Iterator[Objection]:
    """Moves whose rows compact has brought into one file are counted together."""
    if not _stream_known(look):
        return
    spans, moves = _spans(look.tier_moves), {m.move_id: m for m in look.tier_moves if not m.accepted}
    compacted = bool(look.compact_moves) or bool(look.taken_over & look.lineage)
    compacted = compacted or bool(look.books.corrected)  # whose files reach over several moves, too
    corrected: Counter[int] = Counter()
    for row in look.books.corrected:
        corrected.update(dict.fromkeys(_moves_of(spans.get(row.partition, []), row.offset, row.offset), row.rows))
    together = _Together(moves)
    held: list[tuple[int, int]] = []  # a move, and rows of a file that has rows of it
    for file in _stream_files(look):
        brought_by: list[int] = []
        for run in by_partition([file]):
            if run.partition is None or run.partition < 0 or run.low is None or run.high is None:
                continue
            found = _moves_of(spans.get(run.partition, []), run.low, run.high)
            if found and (compacted or len(found) == 1):
                brought_by += found
            elif run.high >= look.origin.get(run.partition, 0):
                yield Objection(
                    file.path,
                    f"{file.path} holds offsets {run.low}..{run.high} of partition {run.partition}; no committed move "
                    "brought them",
                )
        if len(set(brought_by)) > 1 and not compacted:
            yield Objection(file.path, f"{file.path} holds rows of tier moves {spelled(sorted(set(brought_by)))}")
        if brought_by:  # a file that mixes partitions has rows of a move in several of them
            together.join(brought_by)
            held.append((brought_by[0], file.rows))
    rows: Counter[int] = Counter()
    for move_id, count in held:
        rows[together.first(move_id)] += count
    for first, members in together.groups().items():
        brought = sum((moves[m].rows or 0) + corrected[m] for m in members)
        if rows[first] != brought:
            one = len(members) == 1
            yield Objection(
                f"move {first}",
                f"tier {'move' if one else 'moves'} {spelled(members)} brought {brought:,} rows, "
                f"{'its' if one else 'their'} files in the head hold {rows[first]:,}",
            )


@rule("S31", "no partition of the lake has more rows and refused records than offsets", "lake")
def lake_rows_fit_offsets(look: Look) -> Iterator[Objection]:
    """Offsets without either are no fault as such (transactions, compaction leave gaps): a hint, and `audit` judges."""
    if not _stream_known(look):
        return
    rows: Counter[int] = Counter()
    for file in by_partition(_stream_files(look)):
        rows[-1 if file.partition is None else file.partition] += file.rows
    for partition, position in look.books.positions.items():
        if position.stream_hi is None or position.lake_start is None:
            continue
        span = position.stream_hi - position.lake_start
        refused = look.books.quarantined.get(partition, (0, 0))[0]
        where = f"partition {partition}: [{position.lake_start}, {position.stream_hi})"
        filtered = look.books.filtered.get(partition, 0)  # some of them may be above the lake
        left_out = f"{filtered:,} left out by the filter, " if filtered else ""
        counts = f"{rows[partition]:,} rows, {refused:,} in quarantine, {left_out}{span:,} offsets"
        if rows[partition] + refused > span:
            yield Objection(f"lake {partition}", f"{where}: {counts}: more records than there can be")
        elif rows[partition] + refused + filtered < span:
            text = f"{where}: {counts}: gaps of the log, or records removed; `harness audit` tells which"
            yield Objection(f"lake {partition}", text, hint=True)


def _spans(moves: Iterable[Taken]) -> dict[int, list[tuple[int, int, int]]]:
    """Per partition (low, high, move), by low."""
    spans: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for move in moves:
        for partition, (low, high) in move.ranges.items():
            spans[partition].append((low, high, move.move_id))
    return {partition: sorted(found) for partition, found in spans.items()}


def _moves_of(spans: Sequence[tuple[int, int, int]], low: int, high: int) -> list[int]:
    """The moves that ``[low, high]`` reaches into; none where no move has the first or the last of it."""
    first, last = (bisect_right(spans, offset, key=lambda span: span[0]) - 1 for offset in (low, high))
    if first < 0 or low >= spans[first][1] or high >= spans[last][1]:
        return []
    return [move_id for _, _, move_id in spans[first : last + 1]]


class _Together:
    """Moves in groups: those that share a file are in one."""

    def __init__(self, moves: Iterable[int]) -> None:
        self._above = {move: move for move in moves}

    def join(self, moves: Sequence[int]) -> None:
        for move in moves:
            self._above[self.first(move)] = self.first(moves[0])

    def first(self, move: int) -> int:
        """The move that stands for the group of *move*."""
        while self._above.setdefault(move, move) != move:
            move = self._above[move]
        return move

    def groups(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for move in sorted(self._above):
            found.setdefault(self.first(move), []).append(move)
        return found


def _stream_files(look: Look) -> list[FileSeen]:
    return look.views["stream"].live_files if "stream" in look.views else []


def _stream_known(look: Look) -> bool:
    return "stream" in look.views and look.views["stream"].is_known
