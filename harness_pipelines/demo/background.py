"""Threads of the demo; the main thread re-raises their errors."""

from __future__ import annotations

import threading


class Background:
    """A thread that runs `run` once; `run` looks at `stopping` now and then."""

    stop_timeout_s = 30.0

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=f"demo/{type(self).__name__}", daemon=True)

    def run(self) -> None:
        raise AssertionError(f"{type(self).__name__} has nothing to run")

    def start(self) -> None:
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to end, and wait for that; harmless when it was never started."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(self.stop_timeout_s)

    def check(self) -> None:
        """Raise what the thread raised."""
        if self.failed is not None:
            raise self.failed

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failed = error
