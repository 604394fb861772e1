"""What the processes of a chaos run share: they end when their parent does, and tell it things line by line."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import orjson


def stop_with_parent() -> threading.Event:
    """Set when standard input ends: the parent closed it, or is gone. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    return stopping


def tell(message: dict[str, Any]) -> None:
    """Send *message* to the parent."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()
