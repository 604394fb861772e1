"""Rules of fsck about the lake: what versions name is there, and holds what their moves brought."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from harness_pipelines.audit.fsck_rules import Found, Look, rule, spelled
from harness_pipelines.protocol.versions import answering_version
from harness_pipelines.stores.books import SHOWN_MAX, Books, MoveRow, VersionRow, protocol_versions
from harness_pipelines.stores.lake import ATTEMPT, MOVE, RANGES, SCHEMA_VERSION
from harness_pipelines.stores.lake_look import FileSeen, MetadataSeen, SnapshotSeen


def named_versions(books: Books) -> dict[int, VersionRow]:
    """The versions whose files must be there: retained, leased, base of an open move, or answering for one of these."""
    bases = {m.base_version for m in books.moves if m.state == "PLANNED"}
    named = {v.version: v for v in (*books.retained, *(v for v in books.versions if v.version in bases))}
    old = {v for v in named if v < books.retained_from}
    if old:
        every = protocol_versions(books.versions)
        answers = {w.version for v in every if v.version in old and (w := answering_version(v, every)) is not None}
        named |= {v.version: v for v in books.versions if v.version in answers}
    return named


def named_locations(books: Books) -> list[str]:
    """Metadata files that must be there, the catalog's present one among them."""
    named = [v.metadata for v in named_versions(books).values()]
    return list(dict.fromkeys([*named, *([books.pointer] if books.pointer else [])]))


@rule("S10", "what retained versions, leases and open moves name exists and can be read", "lake")
def reached_files(look: Look) -> Iterator[Found]:
    assert look.survey is not None
    who: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
    for number, version in named_versions(look.books).items():
        for kind, file in look.survey.lost(version.metadata):
            who[kind, file.path, file.why].add(number)
    if look.books.pointer is not None:
        for kind, file in look.survey.lost(look.books.pointer):
            who[kind, file.path, file.why].update()
    for (kind, path, why), versions in sorted(who.items()):
        needed = f"version {spelled(versions)}" if versions else "the catalog's present state"
        yield Found(path, f"{kind} {path}: {why}; {needed} needs it")


@rule("S7", "the catalog names what the newest version published, and no other writer's snapshot", "lake")
def pointer_is_the_heads(look: Look) -> Iterator[Found]:
    books = look.books
    if books.pointer is None:
        yield Found("pointer", f"the catalog has no view {books.namespace}.{books.view}")
        return
    assert look.survey is not None
    current = look.survey.metadata[books.pointer]
    if look.head is None or not isinstance(current, MetadataSeen):
        return
    if current.snapshot == look.head.snapshot:
        return
    foreign = [s for s in current.snapshots.values() if _is_main(s, current) and not _is_known(s, look)]
    shown = "; ".join(
        f"snapshot {s.snapshot} ({s.summary.get('operation', '?')} of {s.summary.get('added-records', '0')} rows by "
        f"{s.summary.get('engine-name', 'another writer')})"
        for s in foreign[:SHOWN_MAX]
    )
    yield Found(
        "pointer",
        f"main of {books.namespace}.{books.view} is at snapshot {current.snapshot}, version {look.head.version} "
        f"published {look.head.snapshot}" + (f"; not of the harness: {shown}" if shown else ""),
    )


def _is_main(snapshot: SnapshotSeen, current: MetadataSeen) -> bool:
    """Only main is the harness's alone to publish on: branches are drafts."""
    at, seen = current.snapshot, set()
    while at is not None and at in current.snapshots and at not in seen:
        if at == snapshot.snapshot:
            return True
        seen.add(at)
        at = current.snapshots[at].parent
    return False


def _is_known(snapshot: SnapshotSeen, look: Look) -> bool:
    return MOVE in snapshot.summary or any(v.snapshot == snapshot.snapshot for v in look.books.versions)


@rule("S28", "a version's snapshot says by its summary which move, attempt and ranges made it", "lake")
def summaries_agree(look: Look) -> Iterator[Found]:
    assert look.survey is not None
    moves = {m.move_id: m for m in look.books.moves}
    for number, version in sorted(named_versions(look.books).items()):
        metadata = look.survey.metadata[version.metadata]
        if not isinstance(metadata, MetadataSeen):
            continue
        where = f"version {number}"
        if metadata.snapshot != version.snapshot or metadata.head is None:
            yield Found(where, f"{where} is snapshot {version.snapshot}, its metadata file has {metadata.snapshot}")
            continue
        move = moves.get(version.move_id or 0)
        if move is None:
            continue
        if version.revert_of is not None:
            if (found := metadata.head.summary.get(MOVE)) != str(move.move_id):
                yield Found(where, f"{where} is revert {move.move_id}, its snapshot was made by move {found}")
            continue
        if wrong := _differences(metadata.head.summary, move):
            yield Found(where, f"{where}, move {move.move_id}: {wrong}")


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
def nobody_else_removes(look: Look) -> Iterator[Found]:
    current = look.survey.metadata.get(look.books.pointer or "") if look.survey else None
    if not isinstance(current, MetadataSeen):
        return
    for word in ("gc.enabled", "write.metadata.delete-after-commit.enabled"):
        if (found := current.properties.get(word)) != "false":
            yield Found(word, f"the view's property {word} is {found or 'not set'}: other engines may remove files")


@rule("S26", "the stream view has no delete files", "lake")
def no_deletes(look: Look) -> Iterator[Found]:
    for file in _head_files(look):
        if file.deletes is not None:
            yield Found(file.path, f"{file.deletes} delete file {file.path} with {file.rows:,} rows")


@rule("S29", "every live file lies inside what tier moved, of one partition, with its offsets", "lake")
def files_inside_bounds(look: Look) -> Iterator[Found]:
    head = {} if look.head is None else look.head.bounds
    for file in _data_files(look):
        if file.partition is None or file.low is None or file.high is None:
            yield Found(
                file.path, f"{file.path} has no Kafka partition or no bounds of its offsets: not of the harness"
            )
        elif file.partition < 0:  # rows of another writer that were accepted
            continue
        elif (cut := head.get(file.partition)) is None:
            yield Found(file.path, f"{file.path} holds partition {file.partition}, which the table does not have")
        elif file.low < cut.start:
            yield Found(
                file.path,
                f"{file.path} holds offset {file.low} of partition {file.partition}, which starts at {cut.start}",
            )


@rule("S37", "no live file of the stream head holds an offset at or above stream_hi", "lake")
def files_below_stream_hi(look: Look) -> Iterator[Found]:
    for file in _data_files(look):
        row = look.books.positions.get(-1 if file.partition is None else file.partition)
        if row is None or file.high is None or row.stream_hi is None:
            continue
        if file.high >= row.stream_hi:
            yield Found(
                file.path,
                f"{file.path} holds offset {file.high} of partition {file.partition}, stream_hi is {row.stream_hi}",
            )


@rule("S1", "no file is in the head twice", "lake")
def files_once(look: Look) -> Iterator[Found]:
    for path, count in Counter(file.path for file in _data_files(look)).items():
        if count > 1:
            yield Found(path, f"{path} is live {count} times: its rows are doubled")


@rule("S31", "the files of a move hold the rows that the move counted", "lake")
def move_rows(look: Look) -> Iterator[Found]:
    held: Counter[int] = Counter()
    spans = _spans(look.tier_moves)
    if not _head_known(look):
        return
    for file in _data_files(look):
        if file.partition is None or file.partition < 0 or file.low is None or file.high is None:
            continue
        move_id = _move_of(spans.get(file.partition, ()), file.low, file.high)
        if move_id is not None:
            held[move_id] += file.rows
        elif file.high >= look.origin.get(file.partition, 0):
            yield Found(
                file.path,
                f"{file.path} holds offsets {file.low}..{file.high} of partition {file.partition}; no committed move "
                "brought them",
            )
    for move in (m for m in look.tier_moves if not m.accepted):
        if held[move.move_id] != (move.rows or 0):
            yield Found(
                f"move {move.move_id}",
                f"tier move {move.move_id} brought {move.rows or 0:,} rows, its files in the head hold "
                f"{held[move.move_id]:,}",
            )


@rule("S31", "no partition of the lake has more rows and refused records than offsets", "lake")
def lake_rows_fit_offsets(look: Look) -> Iterator[Found]:
    """Offsets without either are no fault as such (transactions, compaction leave gaps): a hint, and `audit` judges."""
    if not _head_known(look):
        return
    rows: Counter[int] = Counter()
    for file in _data_files(look):
        rows[-1 if file.partition is None else file.partition] += file.rows
    for partition, position in look.books.positions.items():
        if position.stream_hi is None or position.lake_start is None:
            continue
        span = position.stream_hi - position.lake_start
        refused = look.books.quarantined.get(partition, (0, 0))[0]
        where = f"partition {partition}: [{position.lake_start}, {position.stream_hi})"
        counts = f"{rows[partition]:,} rows, {refused:,} in quarantine, {span:,} offsets"
        if rows[partition] + refused > span:
            yield Found(f"lake {partition}", f"{where}: {counts}: more records than there can be")
        elif rows[partition] + refused < span:
            text = f"{where}: {counts}: gaps of the log, or records removed; `harness audit` tells which"
            yield Found(f"lake {partition}", text, hint=True)


def _spans(moves: Iterable[MoveRow]) -> dict[int, list[tuple[int, int, int]]]:
    """Per partition (low, high, move), by low."""
    spans: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for move in moves:
        for partition, (low, high) in move.ranges.items():
            spans[partition].append((low, high, move.move_id))
    return {partition: sorted(found) for partition, found in spans.items()}


def _move_of(spans: Iterable[tuple[int, int, int]], low: int, high: int) -> int | None:
    """The move whose range has all of ``[low, high]``."""
    known = list(spans) if not isinstance(spans, list) else spans
    at = bisect_right(known, low, key=lambda span: span[0]) - 1
    return known[at][2] if at >= 0 and high < known[at][1] else None


def _head_files(look: Look) -> list[FileSeen]:
    if look.survey is None or look.head is None:
        return []
    return look.survey.files(look.head.metadata) or []


def _head_known(look: Look) -> bool:
    """The head's manifests can all be read; if not, S10 says so, and counting would only say it again."""
    return look.survey is not None and look.head is not None and look.survey.files(look.head.metadata) is not None


def _data_files(look: Look) -> list[FileSeen]:
    return [file for file in _head_files(look) if file.deletes is None]
