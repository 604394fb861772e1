"""What is opened by the first who needs it is opened once.

On Python 3.11 the `cached_property` of `functools` does so too; on 3.12 and 3.13 eight threads open it eight times.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from harness_pipelines.app.installation import once

THREADS = 8


def test_threads_that_ask_at_the_same_moment_get_the_same_thing():
    together = threading.Barrier(THREADS)
    opened: list[object] = []

    class Stores:
        @once
        def database(self) -> object:
            opened.append(object())
            threading.Event().wait(0.05)  # as opening takes its time
            return opened[-1]

        @once
        def ledger(self) -> tuple[object]:
            return (self.database,)

    stores = Stores()

    def ask() -> object:
        together.wait()
        return stores.ledger[0]

    with ThreadPoolExecutor(THREADS) as pool:
        got = {id(future.result()) for future in [pool.submit(ask) for _ in range(THREADS)]}
    assert len(got) == len(opened) == 1
