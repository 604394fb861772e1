"""Logging of the command line: structlog, one plain line per event on standard error."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from harness_pipelines.secret import redact


class _StandardError:
    """Writes to what standard error is at that moment: a live display and tests replace it."""

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    debug = info = warning = warn = error = critical = exception = log = msg


def configure_logging(level: int = logging.WARNING) -> None:
    """Show events of *level* and above as lines ``time level event key=value ...`` without secrets."""
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            plain_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _StandardError(),
        cache_logger_on_first_use=False,
    )


def plain_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Render one event as a line (a structlog processor)."""
    head = [str(event.pop("timestamp", "")), f"{event.pop('level', ''):<7}", str(event.pop("event", ""))]
    trace = event.pop("exception", None)
    pairs = [f"{name}={_shown(value)}" for name, value in event.items()]
    line = " ".join([*head, *pairs])
    return redact(f"{line}\n{trace}" if trace else line)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() or c in '"=' for c in text) else text
