"""Logging of the command line: structlog, one plain line per event on standard error."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from harness_pipelines.errors import UsageError
from harness_pipelines.secret import redact
from harness_pipelines.show.output import printable


class _StandardError:
    """Writes to the current standard error, which a live display and tests replace."""

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    debug = info = warning = warn = error = critical = exception = log = msg


class _LogFile:
    """Writes to a file that rotates when it is large."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()  # what is wrong with it is said now
        self._path, self._lock = path, threading.Lock()

    def msg(self, message: str) -> None:
        from harness_pipelines.services.logs import LOG_BYTES_MAX, rotate_one

        line = f"{message}\n".encode()
        with self._lock:
            # Each time: others may rotate it too. By `Path.open` it takes four times as long for one line.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                while line:
                    line = line[os.write(file, line) :]
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > LOG_BYTES_MAX:
                rotate_one(self._path)

    debug = info = warning = warn = error = critical = exception = log = msg


def configure_logging(level: int = logging.WARNING, file: Path | None = None) -> None:
    """Show events of *level* and above as lines ``time level event key=value ...`` without secrets.

    They go to *file*, by default to standard error. Raises: UsageError.
    """
    import structlog

    try:
        place = _StandardError() if file is None else _LogFile(file)
    except OSError as error:
        raise UsageError(f"the log cannot be written to {file}: {error.strerror or error}") from error

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True),
            plain_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: place,
        cache_logger_on_first_use=False,
    )


def plain_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Render one event as a line (a structlog processor)."""
    head = [str(event.pop("timestamp", "")), f"{event.pop('level', ''):<7}", str(event.pop("event", ""))]
    trace = event.pop("exception", None)
    pairs = [f"{name}={_shown(value)}" for name, value in event.items()]
    line = " ".join([*head, *pairs])
    return redact(f"{line}\n{trace}" if trace else line)


_QUOTED = re.compile(r'[\s"=]')  #: what has one of these is shown in quotes


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    is_plain = text and text.isprintable() and not _QUOTED.search(text)
    return text if is_plain else printable(json.dumps(text, ensure_ascii=False))
