"""The limit of refused records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.stages.ingest.refusing import one_too_many


def test_the_limit_is_reached_by_the_record_after_the_last_that_is_allowed():
    assert one_too_many([], [3, 5, 9], of_last=10, records_max=2) == 9
    assert one_too_many([], [3, 5, 9], of_last=10, records_max=3) is None
    assert one_too_many([3, 5], [9, 11], of_last=10, records_max=2) == 9
    assert one_too_many([], [4], of_last=10, records_max=0) == 4


def test_only_the_last_offsets_count():
    assert one_too_many([0], [10, 20], of_last=10, records_max=1) is None
    assert one_too_many([1], [10], of_last=10, records_max=1) == 10


@given(
    refused=st.sets(st.integers(0, 80)).map(sorted),
    cuts=st.sets(st.integers(1, 80)).map(sorted),
    of_last=st.integers(1, 40),
    share=st.integers(0, 10),
)
def test_where_it_stops_does_not_depend_on_the_batches(refused: list[int], cuts: list[int], of_last: int, share: int):
    rule = {"of_last": of_last, "records_max": share}
    slow = next(
        (o for o in refused if sum(o - of_last < other <= o for other in refused) > share), None
    )  # fmt: skip
    assert one_too_many([], refused, **rule) == slow

    found = None
    for low, high in zip([0, *cuts], [*cuts, 81], strict=True):
        earlier = [o for o in refused if low - of_last <= o < low]
        found = one_too_many(earlier, [o for o in refused if low <= o < high], **rule)
        if found is not None:
            break
    assert found == slow
