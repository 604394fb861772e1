"""A record that the broker took by a request whose answer was lost has its offset all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness_pipelines.sources.kafka import producer
from harness_pipelines.spec.settings import Settings


class Delivered:
    """What the client says of a delivered message."""

    def __init__(self, partition: int, offset: int | None) -> None:
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def latency(self) -> float:
        return 0.0


class Client:
    """Of a broker that answers as it is told to, when it is polled."""

    answers: list[int | None]

    def __init__(self, _config: dict[str, Any]) -> None:
        self._waiting: list[Callable[[], None]] = []

    def produce(self, *_: Any, partition: int, on_delivery: Callable[[None, Delivered], None]) -> None:
        answer = Delivered(partition, self.answers.pop(0))
        self._waiting.append(lambda: on_delivery(None, answer))

    def poll(self, _timeout_s: float) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one()


@pytest.mark.parametrize(
    ("answers", "offsets"),
    [
        ([5, None, None, 8], [5, 6, 7, 8]),
        ([5, -1001, 7], [5, 6, 7]),
        ([None, 1], [0, 1]),  # the first record of a partition
        ([3, None, 9, None], [3, 4, 9, 10]),
    ],
)
def test_an_acknowledgement_without_an_offset_follows_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[int | None], offsets: list[int]
):
    monkeypatch.setattr(producer, "Producer", Client)
    monkeypatch.setattr(Client, "answers", [*answers, 0], raising=False)
    found: list[int] = []
    records = producer.RecordProducer(Settings(home=tmp_path, kafka="127.0.0.1:9092"), "orders")
    for _ in answers:
        records.send(0, b"{}", lambda offset, _at: found.append(offset))
    others: list[int] = []
    records.send(1, b"{}", lambda offset, _at: others.append(offset))
    records.serve()
    assert found == offsets
    assert others == [0], "each partition counts for itself"
