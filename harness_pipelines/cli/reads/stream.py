"""`harness stream`: every record of a table in order, the history first, then what comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import AGAIN_S, AtType, opened, split_names
from harness_pipelines.cli.show.output import note
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.pauses import Pauses
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.spec.settings import Settings

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
    help="Where to begin: at the first or the next record, behind a version or snapshot, at a moment, or behind what "
    "the token's reader had.  [default: earliest]",
)
@click.option("--columns", callback=split_names, metavar="A,B", help="Only these, and the coordinates.")
@click.option("--where", metavar="SQL", help="Only records for which this holds, such as \"_op = 'put'\".")
@click.option("--partitions", callback=split_names, metavar="0,1", help="Only these, so that several readers share.")
@click.option("--state-first", is_flag=True, help="Of a keyed table: its newest rows first, then all changes of them.")
@click.option(
    "--corrections", is_flag=True, help="Also what a replay made of records that went before, marked by `_correction`."
)
@click.option("--no-follow", is_flag=True, help="End where Kafka ends now, instead of waiting for more.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many records.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="json", show_default=True)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep in FILE how far the output is, and begin behind it where FILE is there already.",
)
@click.pass_obj
def stream(settings: Settings, /, table: str, **options: Any) -> None:
    """Print every record of a table in offset order within its partition: the history, then what Kafka brings.

    `json` is one object per line. A service that is away is waited for. With --resume a record is printed again at most
    when the command was ended between printing it and noting so.

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
        raise UsageError("--corrections have a column more than records, which CSV cannot show: leave --format out")
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
    note(f"{sink.count:,} records")


def _beginning(given: At | None, resume: Path | None) -> At:
    """Where to begin. Raises: UsageError when both are told, TokenUnfit."""
    if resume is None or not resume.exists():
        return "earliest" if given is None else given
    if given is not None:
        raise UsageError(f"{resume} tells where to begin, so leave --from out; or remove the file to begin anew")
    return StreamToken.parse(resume.read_text()).text()


def _numbers(words: list[str] | None) -> list[int] | None:
    try:
        return None if words is None else [int(word) for word in words]
    except ValueError as error:
        raise UsageError(f"--partitions takes numbers, such as 0,1 ({error})") from error


def _through(stream: Stream, sink: _Sink) -> None:
    """All batches of *stream* into *sink*; what is away for a while is waited for."""
    pauses = Pauses(AGAIN_S / 5, AGAIN_S * 6)
    while True:
        try:
            for batch in stream:
                pauses.worked()
                if not sink.take(batch):
                    return
        except TryAgain as error:
            note(f"harness: {error}. Going on behind the last record")
            time.sleep(pauses.next_s())
        else:
            return


class _Sink:
    """Standard output, and the file that tells how far it is."""

    def __init__(self, form: str, resume: Path | None, limit: int | None) -> None:
        from harness_pipelines.cli.show.rows import csv_lines, json_lines

        is_new = resume is None or not resume.exists()
        self._write = json_lines(sys.stdout.buffer) if form == "json" else csv_lines(sys.stdout.buffer, header=is_new)
        self._resume, self._limit = resume, limit
        self.count = 0

    def take(self, batch: StreamBatch) -> bool:
        """Write *batch*; False when that was enough."""
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
