"""A record that a codec raises for is quarantined; the others are what they are without it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.culprits import LOG_EVERY_S, Notices
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec

COLUMNS = {"id": "long", "s": "string"}


def broken_codec(why: BaseException, *, on: bytes = b"bad", **words: Any) -> RecordCodec:
    """A codec of which a part raises *why* for values that have *on*: which one it is shall not matter."""
    spec = TableSpec.model_validate({"table": "a.b", "columns": COLUMNS, **words})
    codec = RecordCodec(spec)
    decode = codec._values.decode

    class Raising:
        def decode(self, values: Sequence[bytes | None]) -> Decoded:
            if any(on in (value or b"") for value in values):
                raise why
            return decode(values)

    codec._values = Raising()
    return codec


def values(count: int, bad: Sequence[int]) -> list[bytes | None]:
    return [b'{"id":%d,"s":"%s"}' % (i, b"bad" if i in bad else b"good") for i in range(count)]


def test_one_record_that_raises_is_set_aside_and_the_others_are_rows() -> None:
    codec = broken_codec(RuntimeError("what\nis this"))
    found = codec.decode(values(100, [3, 4, 99]), [None] * 100)
    assert [(one.index, one.reason, one.detail) for one in found.refused] == [
        (at, Reason.UNDECODABLE, "RuntimeError: what is this") for at in (3, 4, 99)
    ]
    assert found.rows.column("id").to_pylist() == [i for i in range(100) if i not in (3, 4, 99)]
    assert found.accepted.tolist() == found.rows.column("id").to_pylist()


@pytest.mark.parametrize("why", [MemoryError(), RecursionError("deep"), AssertionError(), OverflowError("large")])
def test_whatever_it_is_that_one_record_raises(why: Exception) -> None:
    found = broken_codec(why).decode(values(3, [1]), [None] * 3)
    assert [one.reason for one in found.refused] == [Reason.UNDECODABLE]
    assert found.refused[0].detail.startswith(type(why).__name__)


@pytest.mark.parametrize(
    "why", [TryAgain("the registry is away"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ImportError("gone")]
)
def test_what_no_record_is_to_blame_for_is_raised(why: BaseException) -> None:
    with pytest.raises(type(why)):
        broken_codec(why).decode(values(3, [1]), [None] * 3)


def test_warnings_of_the_contract_are_counted_in_the_halves_too() -> None:
    words: Any = {"contract": {"columns": {"id": {"lt": 2}}, "severity": "warn"}}
    found = broken_codec(ValueError("no"), **words).decode(values(5, [1]), [None] * 5)
    assert dict(found.warned) == {"id.lt": 3}


def test_a_filter_counts_in_the_halves_too() -> None:
    found = broken_codec(ValueError("no"), transform={"filter": "id > 2"}).decode(values(5, [1]), [None] * 5)
    assert (found.filtered, found.rows.column("id").to_pylist()) == (2, [3, 4])


def test_a_reason_is_logged_once_in_a_minute_with_how_often_it_was_met() -> None:
    now = 0.0
    notices = Notices(clock=lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            notices.note("a.b", "ValueError: no")
        notices.note("a.b", "TypeError: none")
        now = LOG_EVERY_S
        notices.note("a.b", "ValueError: no")
    assert [(one["detail"], one["records"]) for one in logs] == [
        ("ValueError: no", 1), ("TypeError: none", 1), ("ValueError: no", 5)
    ]  # fmt: skip
