"""How what one consumer fetched is divided among lanes."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.sources.kafka import shared

EOF = SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
OTHER = SimpleNamespace(code=lambda: KafkaError._TRANSPORT)


class Message:
    """As the client library has them."""

    def __init__(self, topic: str, partition: int, offset: int, error: Any = None) -> None:
        self._place, self._offset, self._error = (topic, partition), offset, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return self._error

    def __len__(self) -> int:
        return 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), min_size=1, max_size=20))
def test_messages_of_one_place_that_follow_each_other_stay_together(places: list[tuple[str, int]]) -> None:
    messages: list[Any] = [Message(topic, p, offset) for offset, (topic, p) in enumerate(places)]
    with mock.patch.object(shared, "Message", Message):  # the library's methods take its own messages alone
        found = list(shared._by_place(messages))
    assert [message for part in found for message in part] == messages
    assert all(len({(m.topic(), m.partition()) for m in part}) == 1 for part in found)
    heads = [(part[0].topic(), part[0].partition()) for part in found]
    assert all(one != following for one, following in pairwise(heads))


def test_the_offset_behind_a_part_is_that_of_its_last_record_or_of_the_end_that_it_tells() -> None:
    records: list[Any] = [Message("a", 0, 98), Message("a", 0, 99)]
    end: Any = Message("a", 0, 105, EOF)
    other: Any = Message("a", 0, -1001, OTHER)
    assert shared._next_offset(records, 98) == 100
    assert shared._next_offset([*records, end], 98) == 105, "what no reader sees lies between"
    assert shared._next_offset([*records, other], 98) == 100
    assert shared._next_offset([other], 98) == 98
