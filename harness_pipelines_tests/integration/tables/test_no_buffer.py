"""`buffer: none`: the log goes straight to the lake, and the union read takes the rest from Kafka."""

from __future__ import annotations

from collections.abc import Callable

from harness_pipelines_tests.rig import TableRig


def test_records_go_from_kafka_to_the_lake_and_misfits_are_published_with_the_move(
    make_rig: Callable[..., TableRig],
) -> None:
    rig = make_rig(buffer="none")
    rig.produce(300)
    offset = rig.produce_misfit(b'{"id":"not a number"}')

    assert rig.read() == rig.truth  # all of it is in the tail
    rig.tier()

    assert rig.status()[0] == (offset + 1, offset + 1)
    rig.assert_exact()
    reason, detail, value = rig.quarantine()[0, offset]
    assert (reason, value) == ("wrong_type", b'{"id":"not a number"}')
    assert "id" in detail

    rig.produce(50)
    rig.assert_exact()  # lake and tail
