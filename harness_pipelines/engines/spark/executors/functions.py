"""Python functions for Spark's executors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from pyspark import cloudpickle

Work = Callable[[Iterable[Any]], Iterable[Any]]  #: over Arrow batches, as `DataFrame.mapInArrow` wants it


def in_any_folder(work: Work) -> Work:
    """*work*, whose modules are imported after its process was given a folder to stand in.

    An executor forgets a session that had no task for half an hour, or that a hundred others had tasks after, and
    removes its folder (Spark 4.1, ``spark.executor.isolatedSessionCache``). The session's Python daemon continues in
    the folder that is no more, and its workers cannot import what asks for the current folder, as PyIceberg does.
    """
    packed = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]  # vendored without types

    def unpacked(batches: Iterable[Any]) -> Iterable[Any]:
        import os
        import pickle

        try:
            os.getcwd()
        except FileNotFoundError:
            os.chdir(os.sep)
        found: Work = pickle.loads(packed)
        return found(batches)

    return unpacked


# Or an executor would import this module, and its package, in order to begin.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
