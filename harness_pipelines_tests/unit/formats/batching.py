"""What holds for every codec of records."""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines.formats.records import RecordCodec

Record = tuple[bytes | None, bytes | None]  #: key and value


def assert_alone_as_together(codec: RecordCodec, records: Sequence[Record]) -> None:
    """Each record is a row or refused, in their order, and the same as when it is decoded alone."""
    together = codec.decode([value for _, value in records], [key for key, _ in records])
    rows = dict(zip(together.accepted.tolist(), together.rows.to_pylist(), strict=True))
    refused = {one.index: (one.reason, one.detail) for one in together.refused}
    assert sorted([*rows, *refused]) == list(range(len(records)))
    assert together.accepted.tolist() == sorted(together.accepted.tolist())
    for i, (key, value) in enumerate(records):
        alone = codec.decode([value], [key])
        if alone.refused:
            assert refused[i] == (alone.refused[0].reason, alone.refused[0].detail)
        else:
            assert rows[i] == alone.rows.to_pylist()[0]
