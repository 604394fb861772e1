"""`harness lineage`: the origin and the place of a file, a move's rows or a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.read.report.lineage import FileLineage, FileTold, MoveLineage, MoveTold, RecordLineage

FILES_SHOWN_MAX = 10
ERROR_CHARS_MAX = 160


@click.command()
@click.argument("table")
@click.argument("what")
@json_option
@click.pass_obj
def lineage(settings: Settings, table: str, what: str, json_target: str | None) -> None:
    """Show the origin of WHAT in TABLE: a data file, the number of a move, or a record as PARTITION:OFFSET.

    For a file (path or name) it shows the snapshot that added it, the versions that hold it, and its move. For a move
    it shows the offsets, the run, and the files that it added and removed. For a record it shows the current place and
    the moves that brought it there. Only files of retained versions are known.

    \b
    Examples:
      harness lineage shop.orders 00000-7-4be3c3b4-0-00001.parquet
      harness lineage shop.orders 412
      harness lineage shop.orders 0:181223 --json | jq .place
    """
    from harness_pipelines.read.report.lineage import FileLineage, MoveLineage

    with opened(settings) as harness:
        found = harness.table(table).lineage(what)

    def human() -> None:
        if isinstance(found, FileLineage):
            _show_file(found)
        elif isinstance(found, MoveLineage):
            _show_move(found)
        else:
            _show_record(found)

    emit(found.to_json(), json_target, human)


def _line(word: str, text: str) -> None:
    click.echo(f"  {word:<9} {text}")


def _show_file(seen: FileLineage) -> None:
    from harness_pipelines.show.bars import size

    entry, origin = seen.file.entry, seen.file.origin
    click.echo(f"{seen.table}: {_kind(seen.file)} of the {seen.file.view} view")
    _line("path", entry.path)
    if entry.is_data:
        hidden = f", {seen.hidden.rows:,} of them hidden" if seen.hidden else ""
        _line("rows", f"{entry.rows:,}{hidden}, {size(entry.bytes)}; {_offsets(seen.file)}")
    else:
        _line("hides", f"{quantity(entry.rows, 'row')} of {entry.hides_in}")
    _line("live", _live(seen))
    kept = origin.operation or "expired from the metadata"
    version = "" if origin.version is None else f", came with version {origin.version}"
    _line("snapshot", f"{origin.snapshot} ({kept}){version}")
    if origin.move is not None:
        _show_move_told(origin.move)
    elif origin.move_id is not None and seen.folded is not None:
        _line("move", f"{origin.move_id}, which is in the ledger no more: {seen.folded}")
    elif origin.move_id is not None:
        _line("move", f"{origin.move_id}, which this ledger does not have: it belongs to a lost ledger")
    else:
        _line(
            "move",
            "unknown: no retained metadata names it, and no version in the ledger came with it",
        )


def _kind(file: FileTold) -> str:
    return "a data file" if file.entry.is_data else "a file of position deletes"


def _offsets(file: FileTold) -> str:
    entry = file.entry
    if entry.low is None:
        return "no offset bounds"
    where = "over all its partitions" if entry.partition is None else f"of partition {entry.partition}"
    return f"offsets [{entry.low:,}, {entry.high:,}) {where}"


def _live(seen: FileLineage) -> str:
    kept = f"of the retained ones, {seen.oldest} to {seen.head}"
    if seen.last is None:
        return f"in no version {kept}"
    newest = ", the newest" if seen.last == seen.head else f"; not in the newest, {seen.head}"
    which = f"version {seen.last}" if seen.first == seen.last else f"versions {seen.first} to {seen.last}"
    return f"in {which}{newest} ({kept})"


def _show_move(seen: MoveLineage) -> None:
    click.echo(f"{seen.table}: move {seen.move.move_id}")
    _show_move_told(seen.move)
    if not seen.has_files:
        none = "its rows went to the buffer" if seen.move.stage == "ingest" else "it did not take effect"
        _line("files", f"none: {none}")
        return
    _show_files("added", seen.added)
    if seen.removed is None:
        _line("removed", "unknown: the previous version is not retained")
    else:
        _show_files("removed", seen.removed)
    if not seen.complete:
        _line("", "its version is too old to list all files")


def _show_files(word: str, files: Sequence[FileTold], *, origin: bool = False) -> None:
    if not files:
        _line(word, "no file")
    for at, file in enumerate(files[:FILES_SHOWN_MAX]):
        _line(word if at == 0 else "", _file_line(file, origin=origin))
    if len(files) > FILES_SHOWN_MAX:
        _line("", f"and {len(files) - FILES_SHOWN_MAX:,} more: --json prints all of them")


def _file_line(file: FileTold, *, origin: bool) -> str:
    entry, move = file.entry, file.origin.move
    what = _offsets(file) if entry.is_data else "position deletes"
    came = f"; by {move.stage} move {move.move_id}" if origin and move else ""
    return f"{file.view}  {entry.path.rsplit('/', 1)[-1]}  {quantity(entry.rows, 'row')}; {what}{came}"


def _show_move_told(move: MoveTold) -> None:
    from harness_pipelines.show.bars import ago, size

    attempt = f" in attempt {move.attempt}" if move.state == "COMMITTED" else f", attempt {move.attempt}"
    _line("move", f"{move.move_id}: {move.stage}, {move.state}{attempt}; trigger {move.trigger}")
    _line("offsets", _ranges(move))
    if move.rows is not None:
        _line("moved", quantity(move.rows, "row") + ("" if move.bytes is None else f", {size(move.bytes)}"))
    base = "" if move.base_version is None else f"version {move.base_version}, "
    made = "" if move.version is None else f"; made version {move.version}"
    _line("built on", f"{base}schema {move.schema_version}{made}")
    ended = f", committed {_after(move, ago)}" if move.committed_at else ""
    _line("planned", f"{move.planned_at:%F %T} UTC{ended}")
    if move.run_id:
        _line("run", f"{move.run_id} (Dagster)")
    if move.parent_move is not None:
        _line("parent", f"move {move.parent_move}")
    if move.undone_by is not None:
        _line("undone", f"by the revert that is move {move.undone_by}")
    if move.error:
        of = "of an earlier attempt: " if move.state == "COMMITTED" else ""
        _line("error", f"{of}{move.error[:ERROR_CHARS_MAX]}")


def _after(move: MoveTold, ago: Callable[[float], str]) -> str:
    assert move.committed_at is not None
    return f"{ago((move.committed_at - move.planned_at).total_seconds())} later"


def _ranges(move: MoveTold) -> str:
    shown = ", ".join(f"{r.partition}: [{r.low:,}, {r.high:,})" for r in move.ranges)
    return shown or "none: it moves no bound"


def _show_record(seen: RecordLineage) -> None:
    at = seen.asked
    click.echo(f"{seen.table}: partition {at.partition}, offset {at.offset:,}, at version {seen.version}")
    _line("lies", _place(seen))
    b = seen.bounds
    _line("bounds", f"start {b.start:,}, batch {b.batch_hi:,}, stream {b.stream_hi:,}, buffer {b.buffer_hi:,}")
    if seen.quarantined:
        _line("refused", f"{seen.quarantined['reason']}: {seen.quarantined['detail']}"[:ERROR_CHARS_MAX])
        _line("", f"`harness quarantine show {seen.table} {at.partition} {at.offset}` has its bytes")
    if seen.files:
        _show_files("files", seen.files, origin=True)
    for one in seen.folded:
        which = f"one of {one.moves:,} moves from {one.first_move} to {one.last_move}"
        _line(one.stage, f"{which}, which were folded into a checkpoint on {one.folded_at:%F}")
    for move in seen.moves:
        made = "" if move.version is None else f", made version {move.version}"
        undone = "" if move.undone_by is None else f"; taken back by move {move.undone_by}"
        when = move.committed_at or move.planned_at
        _line(move.stage, f"move {move.move_id}, {when:%F %T} UTC{made}{undone}")


def _place(seen: RecordLineage) -> str:
    if seen.place == "quarantine":
        return "in quarantine: it does not fit the columns"
    if seen.record is False:
        return "nowhere: the log has no record at this offset (a transaction marker, or compacted away)"
    if seen.recalled:
        return f"recalled to Postgres: {', '.join(seen.recalled)}"
    match seen.place:
        case "batch":
            return f"in the batch view{', unless a newer record of its key replaced it' if seen.keyed else ''}"
        case "stream":
            return "in the stream view"
        case "buffer":
            return f"in the buffer: {', '.join(seen.segments)}"
        case _:
            return "only in Kafka: it is not ingested yet"
