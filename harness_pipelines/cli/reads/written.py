"""The rows of a result as bytes: on standard output, or in a file that appears only when it is complete."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import note, replacing
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "csv", "parquet")
SUFFIXES = {".json": "json", ".csv": "csv", ".parquet": "parquet"}


def form_of(form: str | None, output: Path | None, json_target: str | None) -> str:
    """The format of a result by the options ``--format``, ``--output`` and ``--json``. Raises: UsageError."""
    if json_target is not None and (form or output):
        raise UsageError("--json cannot be combined with --output; use --format json")
    if form is None and output is not None:
        form = SUFFIXES.get(output.suffix.lower())
        if form is None:
            known = ", ".join(SUFFIXES)
            raise UsageError(f"--output {output}: unknown format; end the name in {known}, or add --format")
    form = form or "table"
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("parquet cannot be printed on a terminal: add --output FILE, or pipe it")
    return form


def write_rows(batches: AbstractContextManager[pa.RecordBatchReader], form: str, output: Path | None) -> None:
    """Write rows as they arrive; a file appears only when it is complete."""
    from harness_pipelines.show.rows import write

    if output is None:
        with batches as reader:
            write(reader, form, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    with ExitStack() as held:
        reader = held.enter_context(batches)
        try:
            sink = held.enter_context(replacing(output))
        except OSError as error:
            raise click.FileError(str(output), hint=error.strerror or str(error)) from error
        count = write(reader, form, sink)
    note(f"{quantity(count, 'row')} in {output}")
