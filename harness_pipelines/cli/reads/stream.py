"""`harness stream`: every record of a table in order: first the history, then new records."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import AGAIN_S, AtType, opened, split_names
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.pauses import Pauses
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.show.output import note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.protocol.reading.reads import At
    from harness_pipelines.read.stream.stream import Stream, StreamBatch

FORMATS = ("json", "csv")


@click.command()
@click.argument("table")
@click.option(
    "--from",
    "from_",
    type=AtType(),
    metavar="earliest|latest|VERSION|SNAPSHOT|TIME|TOKEN",
    help="Start at the first or the next record, after a version or snapshot, at a time, or after a token's "
    "position.  [default: earliest]",
)
@click.option("--columns", callback=split_names, metavar="A,B", help="Only these columns and the coordinates.")
@click.option("--where", metavar="SQL", help="Only records that match, such as \"_op = 'put'\".")
@click.option(
    "--partitions",
    callback=split_names,
    metavar="0,1",
    help="Only these partitions, so that several readers can share a table.",
)
@click.option("--state-first", is_flag=True, help="For a keyed table: first its newest rows, then all later changes.")
@click.option("--corrections", is_flag=True, help="Also the rows that a replay corrected, marked by `_correction`.")
@click.option("--no-follow", is_flag=True, help="End at Kafka's current end instead of waiting for more.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="json", show_default=True, help="One line for each record."
)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the position of the output in FILE, and continue from it if FILE exists.",
)
@click.pass_obj
def stream(settings: Settings, /, table: str, **options: Any) -> None:
    """Print every record of a table in offset order within its partition: the history, then new records.

    `json` prints one object per line. The command waits for a service that does not answer. With --resume a record is
    printed twice only if the command ended between printing it and saving the position.

    \b
    Examples:
      harness stream shop.orders | head
      harness stream shop.orders --from latest --where "amount > 1000"
      harness stream shop.orders --from 2026-11-22T10:30:00Z --no-follow --format csv > since.csv
      harness stream shop.orders --resume orders.position >> orders.jsonl
      harness stream shop.stock --state-first --columns sku,amount
      harness stream shop.orders --corrections --resume orders.position >> orders.jsonl
    """
    resume: Path | None = options["resume"]
    if options["corrections"] and options["form"] != "json":
        raise UsageError("--corrections adds a column to some rows, which CSV cannot show: omit --format")
    with opened(settings) as harness:
        found = harness.table(table).stream(
            _beginning(options["from_"], resume),
            columns=options["columns"],
            where=options["where"],
            partitions=_numbers(options["partitions"]),
            follow=not options["no_follow"],
            state_first=options["state_first"],
            corrections=options["corrections"],
        )
        sink = _Sink(options["form"], resume, options["limit"])
        _through(found, sink)
    note(quantity(sink.count, "record"))


def _beginning(given: At | None, resume: Path | None) -> At:
    """Return the start. Raises: UsageError if both are given, TokenUnfit."""
    if resume is None or not resume.exists():
        return "earliest" if given is None else given
    if given is not None:
        raise UsageError(
            f"--from and --resume cannot be combined: {resume} already holds a position; remove the file to start over"
        )
    try:
        return StreamToken.parse(read_text(resume, SECRET_BYTES_MAX)).text()
    except Unreadable as error:
        raise UsageError(f"--resume {resume}: the file {error}") from error


def _numbers(words: list[str] | None) -> list[int] | None:
    try:
        return None if words is None else [int(word) for word in words]
    except ValueError as error:
        raise UsageError(f"--partitions needs numbers, such as 0,1 ({error})") from error


def _through(stream: Stream, sink: _Sink) -> None:
    """Write all batches of *stream* to *sink*; wait for a service that does not answer."""
    pauses = Pauses(AGAIN_S / 5, AGAIN_S * 6)
    while True:
        try:
            for batch in stream:
                pauses.worked()
                if not sink.take(batch):
                    return
        except TryAgain as error:
            note(f"harness: {error}. Continuing after the last record")
            time.sleep(pauses.next_s())
        else:
            return


class _Sink:
    """Standard output, and the file with its position."""

    def __init__(self, form: str, resume: Path | None, limit: int | None) -> None:
        from harness_pipelines.show.rows import csv_lines, json_lines

        is_new = resume is None or not resume.exists()
        self._write = json_lines(sys.stdout.buffer) if form == "json" else csv_lines(sys.stdout.buffer, header=is_new)
        self._resume, self._limit = resume, limit
        self.count = 0

    def take(self, batch: StreamBatch) -> bool:
        """Write *batch*; return False when the limit is reached."""
        if self._limit is not None:
            batch = batch.first(self._limit - self.count)
        self._write(batch.rows)
        sys.stdout.buffer.flush()
        self.count += 0 if batch.is_correction else batch.rows.num_rows
        if self._resume is not None:
            draft = self._resume.with_name(f".{self._resume.name}.new")
            draft.write_text(f"{batch.token}\n")
            draft.replace(self._resume)
        return self._limit is None or self.count < self._limit
