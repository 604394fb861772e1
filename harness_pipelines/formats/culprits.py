"""An unexpected exception of a codec costs one record, never the batch or the stage.

A codec, a transform or a contract gives a verdict on each record. Where one raises instead, the batch is halved until
the record that raises is alone, which is then refused with the words of the exception.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import refusal
from harness_pipelines.formats.whole_record import Records

log = structlog.get_logger(__name__)
LOG_EVERY_S = 60.0
_KINDS_MAX = 256  #: of reasons that are remembered
#: Errors of the machine: each record would meet them, and none of them is to blame.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EIO, errno.EROFS,
     errno.EACCES, errno.EPERM}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Apart:
    """Decodes batches, and takes one apart that cannot be decoded as a whole."""

    table: str
    decode: Callable[[Records], Decoded]
    notices: Notices = field(default_factory=lambda: Notices())

    def __call__(self, records: Records) -> Decoded:
        """Raises: HarnessError, which is no verdict on a record; what the machine lacks."""
        try:
            return self.decode(records)
        except HarnessError:
            raise
        except Exception as error:  # the outer edge of one record: whatever it is, it costs this one alone
            if not len(records.values) or is_of_the_machine(error):
                raise
            if len(records.values) > 1:
                middle = len(records.values) // 2
                return joined(self(records.part(0, middle)), self(records.part(middle, None)), at=middle)
            detail = told(error)
            self.notices.note(self.table, detail)
            nothing = self.decode(records.part(0, 0))
            return replace(nothing, refused=[refusal(0, Unfit(Reason.UNDECODABLE, detail))])


def is_of_the_machine(error: Exception) -> bool:
    return isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno in _OF_THE_MACHINE)


def told(error: Exception) -> str:
    """The exception's words, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def joined(first: Decoded, second: Decoded, *, at: int) -> Decoded:
    """What became of records, and of those after them, the first of which is at position *at*."""
    return Decoded(
        rows=pa.concat_tables([first.rows, second.rows]).combine_chunks(),
        accepted=np.concatenate([first.accepted, second.accepted + at]),
        refused=[*first.refused, *(replace(one, index=one.index + at) for one in second.refused)],
        filtered=first.filtered + second.filtered,
        warned=Counter(first.warned) + Counter(second.warned),
    )


class Notices:
    """Logs each reason once in a while, with how often it was met meanwhile."""

    def __init__(self, event: str = "record.undecodable", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._event, self._clock = event, clock
        self._logged: dict[str, tuple[float, int]] = {}  # reason -> when it was logged, records since then

    def note(self, table: str, detail: str, *, kind: str | None = None, records: int = 1, **more_words: object) -> None:
        """*kind*: what counts as the same reason; else the detail does."""
        now, key = self._clock(), f"{table} {kind or detail}"
        at, more = self._logged.get(key, (-LOG_EVERY_S, 0))
        if now - at < LOG_EVERY_S:
            self._logged[key] = (at, more + records)
            return
        if len(self._logged) >= _KINDS_MAX:
            self._logged.clear()
        self._logged[key] = (now, 0)
        log.warning(self._event, table=table, detail=detail, records=more + records, **more_words)
