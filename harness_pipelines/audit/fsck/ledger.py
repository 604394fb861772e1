"""Rules of fsck that the ledger alone answers: versions, bounds, moves, claims, the outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise

from harness_pipelines.audit.fsck.rule import PUBLISHING, Look, Objection, Taken, adopted_in, rule, spelled
from harness_pipelines.ports.ledger import LEASE_AGE_MAX
from harness_pipelines.ports.table_state import MoveRow, VersionRow
from harness_pipelines.protocol.claims import Claim, Stage, ahead, is_ahead
from harness_pipelines.protocol.schema.schemas import SpecDisagrees, check_columns
from harness_pipelines.protocol.shape import intake_of, view_set_of

OPEN = ("PLANNED", "QUARANTINED")
SLACK = timedelta(minutes=1)


@rule("S3", "versions are numbered without gaps")
def version_numbers(look: Look) -> Iterator[Objection]:
    """Behind what is folded, which S39 counts."""
    numbers, folded = [v.version for v in look.books.versions], look.books.folded.version
    if not numbers:
        yield Objection("versions", "the table has no version; its first one is made with it")
        return
    for before, after in pairwise([folded, *(n for n in numbers if n > folded)]):
        missing = range(before + 1, min(look.books.begun.get(after, after), after))
        if missing:
            shown = f"{missing[0]}-{missing[-1]}" if len(missing) > 1 else str(missing[0])
            yield Objection(f"versions {shown}", f"no row for {shown}; the head is {numbers[-1]}")


@rule("S39", "of the versions up to a fold each is folded, or still there")
def folded_versions(look: Look) -> Iterator[Objection]:
    """By count; that moves and checkpoints touch is seen by S6, that they have the rows by S13 and S31."""
    folded = look.books.folded
    kept = sum(v.version <= folded.version for v in look.books.versions)
    left_out = sum(number - low for number, low in look.books.begun.items() if number <= folded.version)
    if folded.versions + kept + left_out != folded.version:
        yield Objection(
            "folded versions",
            f"history is folded up to version {folded.version}: {folded.versions} versions were folded and {kept} are "
            f"still there, together they should be {folded.version - left_out}",
        )


@rule("S3", "bounds are in order: start <= batch_hi <= stream_hi <= buffer_hi")
def bounds_in_order(look: Look) -> Iterator[Objection]:
    for version in look.books.versions:
        for partition, cut in version.bounds.items():
            if not cut.in_order:
                shown = f"start {cut.start}, batch_hi {cut.batch_hi}, stream_hi {cut.stream_hi}"
                yield Objection(
                    f"version {version.version}, partition {partition}",
                    f"version {version.version} says {shown}, buffer_hi {cut.buffer_hi}",
                )
    for row in look.books.positions.values():
        numbers = (row.lake_start, row.batch_hi, row.stream_hi, row.buffer_hi)
        if None in numbers or row.ingest_start is None or row.trim_floor is None:
            gone = "lake_positions" if row.lake_start is None else "ingest_positions"
            yield Objection(f"position {row.partition}", f"partition {row.partition} has no row in {gone}")
        elif list(numbers) != sorted(n for n in numbers if n is not None) or row.lake_start != row.ingest_start:
            yield Objection(
                f"position {row.partition}",
                f"partition {row.partition}: lake_positions has start {row.lake_start}, batch_hi {row.batch_hi}, "
                f"stream_hi {row.stream_hi}, ingest_positions has start {row.ingest_start}, buffer_hi {row.buffer_hi}",
            )


@rule("S3", "a version never takes bounds back, but for a revert")
def bounds_only_rise(look: Look) -> Iterator[Objection]:
    """A batch view that reconcile began again ends where the table begins, and is empty."""
    for before, after in pairwise(look.books.versions):
        for partition, old in before.bounds.items():
            where = f"version {after.version}, partition {partition}"
            new = after.bounds.get(partition)
            if new is None:
                yield Objection(where, f"{where}: the partition is gone, version {before.version} had it")
                continue
            fell = [word for word in ("start", "buffer_hi") if getattr(new, word) < getattr(old, word)]
            risen = [] if after.revert_of is not None else ["stream_hi"]  # reverts are never folded
            risen += ["batch_hi"] if risen and after.version not in look.taken_over else []
            fell += [word for word in risen if getattr(new, word) < getattr(old, word)]
            for word in fell:
                yield Objection(where, f"{where}: {word} falls from {getattr(old, word)} to {getattr(new, word)}")


@rule("S3", "the positions are those of the newest version, the buffer's at least")
def positions_are_the_heads(look: Look) -> Iterator[Objection]:
    if look.head is None:
        return
    for partition, row in look.books.positions.items():
        if row.lake_start is None:
            continue
        cut = look.head.bounds.get(partition)
        expected = (row.lake_start, row.lake_start) if cut is None else (cut.batch_hi, cut.stream_hi)
        if (row.batch_hi, row.stream_hi) != expected:
            yield Objection(
                f"lake_positions {partition}",
                f"partition {partition}: lake_positions has batch_hi {row.batch_hi}, stream_hi {row.stream_hi}; "
                f"version {look.head.version} published {expected[0]} and {expected[1]}",
            )
        if cut is not None and row.buffer_hi is not None and row.buffer_hi < cut.buffer_hi:
            yield Objection(
                f"ingest_positions {partition}",
                f"partition {partition}: buffer_hi is {row.buffer_hi}, version {look.head.version} saw {cut.buffer_hi}",
            )
    for partition in sorted(look.head.bounds.keys() - look.books.positions.keys()):
        yield Objection(
            f"position {partition}", f"partition {partition} of version {look.head.version} has no positions"
        )


@rule("S6", "committed moves touch: tier up to stream_hi, ingest up to buffer_hi, without gap or overlap")
def moves_tile(look: Look) -> Iterator[Objection]:
    head = {} if look.head is None else look.head.stream_hi
    ends = {p: row.stream_hi for p, row in look.books.positions.items() if row.stream_hi is not None}
    yield from seams("tier", look.tier_moves, look.origin, {**head, **ends})
    if intake_of(look.books.spec).reader is Stage.TIER:
        yield from _read_by_tier(look)
        return
    first = [v for v in look.books.versions[:1] if v.version == 1]
    starts = {p: row.ingest_start for p, row in look.books.positions.items() if row.ingest_start is not None}
    starts |= {p: cut.buffer_hi for v in first for p, cut in v.bounds.items()}
    ends = {p: row.buffer_hi for p, row in look.books.positions.items() if row.buffer_hi is not None}
    yield from seams("ingest", look.ingest_moves, starts, ends)


def _read_by_tier(look: Look) -> Iterator[Objection]:
    """`buffer: none`: a tier move is the ingest as well; only a revert lets `stream_hi` fall below what was read."""
    for partition, row in look.books.positions.items():
        read = [v.bounds[partition].stream_hi for v in look.books.versions if partition in v.bounds]
        read += [high for p, high in look.books.folded.stream_hi.items() if p == partition]
        highest = max(read, default=row.ingest_start)
        if row.buffer_hi != highest:
            yield Objection(
                f"ingest_positions {partition}",
                f"partition {partition}: buffer_hi is {row.buffer_hi}, with `buffer: none` it is what tier has read: "
                f"{highest}",
            )


def seams(
    stage: str, moves: Iterable[Taken], starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Objection]:
    """Where the ranges of *moves* leave a gap, overlap, or do not end where they should."""
    ranges: dict[int, list[tuple[int, int, str]]] = {p: [] for p in (*starts, *ends)}
    for move in moves:
        for partition, (low, high) in move.ranges.items():
            ranges.setdefault(partition, []).append((low, high, move.title))
    for partition, taken in sorted(ranges.items()):
        at, before = starts.get(partition, 0), "the start"
        for low, high, title in sorted(taken):
            if low != at or high < low:
                verb = "overlaps" if low < at else "leaves a gap after"
                yield Objection(
                    f"{stage} {title}, partition {partition}",
                    f"{stage} {title} took [{low}, {high}) of partition {partition}; "
                    f"it {verb} {before}, which ends at {at}",
                )
            at, before = max(at, high), title
        if partition in ends and at != ends[partition]:
            yield Objection(
                f"{stage} end, partition {partition}",
                f"partition {partition}: {stage} moves end at {at}, the position is {ends[partition]}",
            )


@rule("S8", "at most one open move per stage and shard")
def one_open_move(look: Look) -> Iterator[Objection]:
    opened = Counter((m.stage, m.shard) for m in look.books.moves if m.state == "PLANNED")
    for (stage, shard), count in opened.items():
        if count > 1:
            ids = spelled(
                m.move_id for m in look.books.moves if (m.stage, m.shard, m.state) == (stage, shard, "PLANNED")
            )
            yield Objection(f"{stage}/{shard}", f"{count} open moves of {stage}, shard {shard}: {ids}")


@rule("S9", "a move takes effect once: a version has one committed move, and a committed move one version")
def moves_and_versions(look: Look) -> Iterator[Objection]:
    moves = {m.move_id: m for m in look.books.moves}
    used: dict[int, int] = {}
    for version in look.books.versions:
        if version.move_id is None:
            if version.version != 1:
                yield Objection(f"version {version.version}", f"version {version.version} was published by no move")
            continue
        where, move = f"version {version.version}, move {version.move_id}", moves.get(version.move_id)
        if version.move_id in used:
            first = used[version.move_id]
            yield Objection(
                where, f"move {version.move_id} took effect twice: in version {first} and in {version.version}"
            )
        used[version.move_id] = version.version
        if move is None:
            yield Objection(
                where, f"version {version.version} names move {version.move_id}, which is not in the ledger"
            )
        elif move.state != "COMMITTED":
            yield Objection(where, f"{move.stage} move {move.move_id} of version {version.version} is {move.state}")
    for move in moves.values():
        unnamed = move.stage in PUBLISHING and move.state == "COMMITTED" and move.move_id not in used
        if unnamed and adopted_in(move) is None:
            yield Objection(
                f"move {move.move_id}", f"{move.stage} move {move.move_id} is committed, but no version has it"
            )


@rule("S9", "a version changes by exactly its move")
def version_is_its_move(look: Look) -> Iterator[Objection]:
    """A relayout and a compaction change no bound, so their ranges are none."""
    moves = {m.move_id: m for m in look.books.moves if m.stage in PUBLISHING}
    effects = view_set_of(look.books.spec).effects
    moved = [(stage.value, bound) for stage, effect in effects.items() for bound in effect.bounds]
    for before, after in pairwise(look.books.versions):
        move = moves.get(after.move_id or 0)
        if move is None or after.version != before.version + 1 or after.revert_of is not None:
            continue
        if adopted_in(move) == after.version:  # one of several
            continue
        for stage, bound in moved:
            changed, expected = _advanced(before, after, bound), move.ranges if stage == move.stage else {}
            if changed != expected:
                yield Objection(
                    f"version {after.version}, move {move.move_id}",
                    f"version {after.version} moves {bound} by {_shown(changed)}, its move {move.move_id} is "
                    f"{_shown(expected)}",
                )


def _advanced(before: VersionRow, after: VersionRow, bound: str) -> dict[int, tuple[int, int]]:
    old = {p: getattr(before.bounds[p], bound) if p in before.bounds else cut.start for p, cut in after.bounds.items()}
    new = {p: getattr(cut, bound) for p, cut in sorted(after.bounds.items())}
    return {p: (old[p], high) for p, high in new.items() if high != old[p]}


def _shown(ranges: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"partition {p} [{low}, {high})" for p, (low, high) in ranges.items()) or "nothing"


@rule("S5", "epochs of a stage only rise, and its claim has the largest")
def epochs_rise(look: Look) -> Iterator[Objection]:
    highest: dict[tuple[str, int], MoveRow] = {}
    for move in look.books.moves:
        if move.epoch == 0:  # of a person's command, which holds no claim
            continue
        key = (move.stage, move.shard)
        last = highest.get(key)
        if last is not None and move.epoch < last.epoch:
            yield Objection(
                f"move {move.move_id}",
                f"{move.stage} move {move.move_id} has epoch {move.epoch}, the earlier {last.move_id} {last.epoch}",
            )
        else:
            highest[key] = move
    for (stage, shard), move in highest.items():
        claim = look.books.claims.get((stage, shard))
        if claim is not None and claim["epoch"] < move.epoch:
            yield Objection(
                f"claim {stage}/{shard}",
                f"the claim of {stage}, shard {shard}, is at epoch {claim['epoch']}, move {move.move_id} has "
                f"{move.epoch}: a late holder would not be fenced",
            )


@rule("S21", "every schema version in use is known")
def schemas_known(look: Look) -> Iterator[Objection]:
    books, known = look.books, set(look.books.schemas)
    if missing := set(range(1, max(known, default=0) + 1)) - known or ({1} - known):
        yield Objection("schemas", f"schema version {spelled(missing)} is gone")
    used = [(f"version {v.version}", v.schema_version) for v in books.versions]
    used += [(f"{m.stage} move {m.move_id}", m.schema_version) for m in books.moves]
    used += [(f"segment {s.name}", s.schema_version) for s in books.segments]
    used += [(f"position {p}", r.schema_version) for p, r in books.positions.items() if r.schema_version is not None]
    for who, schema in used:
        if schema not in known:
            yield Objection(who, f"{who} is in schema {schema}; the table has {spelled(known) or 'none'}")


@rule("S21", "the columns of the spec are those of the schema in force")
def spec_has_the_schema(look: Look) -> Iterator[Objection]:
    books = look.books
    if not books.fields:
        return
    try:
        check_columns(books.spec, fields=books.fields, schema_version=books.schemas[-1])
    except SpecDisagrees as differ:
        taken = "records that were taken meanwhile lack the values of the other columns: `harness replay` has them"
        yield Objection("spec", f"{differ}; {taken}")


@rule("S22", "all partitions are ingested in one schema")
def one_schema_at_a_time(look: Look) -> Iterator[Objection]:
    found = {p: row.schema_version for p, row in look.books.positions.items() if row.schema_version is not None}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"partition {p} in schema {version}" for p, version in found.items())
        yield Objection("ingest_positions", f"a schema publish moves all partitions at once; found {shown}")
        return
    books = look.books
    for schema in set(found.values()):
        if books.versions and books.versions[-1].schema_version != schema:
            newest = books.versions[-1]
            yield Objection(
                "ingest_positions",
                f"ingest is at schema {schema}, version {newest.version} at {newest.schema_version}: they are "
                "published together",
            )
        for segment in books.segments:
            if segment.state == "open" and segment.schema_version != schema:
                yield Objection(
                    f"segment {segment.name}",
                    f"{segment.name} is open in schema {segment.schema_version}, ingest is at {schema}: nothing can "
                    "be written to it, and it never retires",
                )


@rule("S34", "exactly the moves that a revert took back are marked, by a revert")
def undone_moves_are_marked(look: Look) -> Iterator[Objection]:
    kept = {m.move_id for m in look.moves_in_effect}
    reverts = {m.move_id for m in look.books.moves if m.stage == "revert" and m.state == "COMMITTED"}
    for move in look.books.moves:
        if move.stage not in PUBLISHING or move.state != "COMMITTED":
            continue
        where = f"{move.stage} move {move.move_id}"
        if move.undone_by is not None and move.undone_by not in reverts:
            yield Objection(where, f"{where} is marked as undone by move {move.undone_by}, which is no revert")
        elif move.undone_by is not None and move.move_id in kept:
            yield Objection(
                where, f"{where} is marked as undone by revert {move.undone_by}, but its rows are in the head"
            )
        elif move.undone_by is None and move.move_id not in kept:
            yield Objection(where, f"{where} was undone by a revert and is not marked so")


@rule("S33", "the outbox is gap-free")
def outbox_gap_free(look: Look) -> Iterator[Objection]:
    for low, high in look.books.outbox_gaps:
        yield Objection(f"outbox {low}", f"no event {low}" if high == low + 1 else f"no events {low}-{high - 1}")
    if look.books.outbox["last"] != look.books.outbox_seq:
        yield Objection(
            "outbox end", f"the last event is {look.books.outbox['last']}, the table counts {look.books.outbox_seq}"
        )


@rule("L2", "claims end or are taken over")
def claims_left(look: Look) -> Iterator[Objection]:
    for (stage, shard), claim in look.books.claims.items():
        if is_ahead(claim["lease_until"], now=look.books.now):
            held = Claim(
                table_id=look.books.table_id,
                stage=Stage(stage),
                shard=shard,
                holder=claim["holder"],
                epoch=claim["epoch"],
                lease_until=claim["lease_until"],
            )
            yield Objection(f"claim {stage}/{shard}", str(ahead(look.books.name, held, now=look.books.now)))
        waiting = [m for m in look.books.moves if m.state == "PLANNED" and (m.stage, m.shard) == (stage, shard)]
        if not claim["alive"] and waiting:
            yield Objection(
                f"claim {stage}/{shard}",
                f"{stage}: the claim of epoch {claim['epoch']} has ended with move {waiting[0].move_id} open; "
                f"`harness run {look.books.name}` continues with it",
                hint=True,
            )


@rule("L3", "every open move ends")
def moves_left(look: Look) -> Iterator[Objection]:
    for move in look.books.moves:
        claim = look.books.claims.get((move.stage, move.shard))
        if move.state == "QUARANTINED":
            text = f"{move.stage} move {move.move_id} failed in every attempt and holds its stage: {move.error}"
            yield Objection(f"move {move.move_id}", text, hint=True)
        elif move.state == "PLANNED" and claim is None:
            text = f"{move.stage} move {move.move_id} is open and nobody ever claimed its stage"
            yield Objection(f"move {move.move_id}", text, hint=True)


@rule("L4", "leases end")
def leases_end(look: Look) -> Iterator[Objection]:
    known = {v.version for v in look.books.versions}
    for lease in look.books.leases:
        age = look.books.now - lease["born"]
        if age > LEASE_AGE_MAX + SLACK and lease["alive"]:
            yield Objection(f"lease {lease['holder']}", f"the lease of {lease['holder']} lives since {lease['born']}")
        if lease["until"] - look.books.now > LEASE_AGE_MAX + SLACK:
            yield Objection(
                f"lease {lease['holder']}",
                f"the lease of {lease['holder']} on version {lease['version']} ends at "
                f"{lease['until']:%Y-%m-%d %H:%M:%S %Z}, later than any may; `harness reconcile {look.books.name} "
                "--yes` ends it",
            )
        if lease["alive"] and lease["version"] not in known:
            yield Objection(
                f"lease {lease['holder']}",
                f"{lease['holder']} reads version {lease['version']}, which is not in the ledger",
            )


@rule("L1", "records reach the lake within the table's objective")
def lake_lag(look: Look) -> Iterator[Objection]:
    waiting = sum(
        row.buffer_hi - row.stream_hi
        for row in look.books.positions.values()
        if row.buffer_hi is not None and row.stream_hi is not None
    )
    goal_s = look.books.spec.freshness.lake
    age_s = look.books.since_tier_s
    if waiting > 0 and age_s > goal_s:
        text = f"{waiting:,} offsets are not in the lake yet, no move of tier for {age_s:.0f} s (goal {goal_s:.0f} s)"
        yield Objection("lag", text, hint=True)
    if look.books.stopped:
        yield Objection("stopped", f"the table is stopped: {look.books.stopped}", hint=True)
