"""Distinguish an outage of the cluster from an idle topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Protocol

import structlog
from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.sources.kafka.client import UNKNOWN_TOPIC, KafkaClient, Trail, as_kafka_error

log = structlog.get_logger(__name__)


class OffsetAnswer(Protocol):
    """The part of the client's ListOffsetsResultInfo (which it does not export) that is used here."""

    offset: int  #: OFFSET_INVALID when the request timed out: the client reports that as a success


Offsets = Mapping[TopicPartition, "Future[OffsetAnswer]"]
_COUNTED_STEP_S = 2.0


class Questions(Protocol):
    """What a reader asks the cluster when a partition stops answering; `KafkaLog` is one."""

    def describe(self, topic: str) -> TopicIdentity: ...

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]: ...

    def ask_ends(self, topic: str, partitions: Iterable[int]) -> Offsets: ...


class Contact:
    """Remembers when each partition's leader was last heard, asks the silent ones, and gives up after a while.

    Only time spent in polls counts as silence, a little at a time: a process that was stopped or busy elsewhere does
    not wake up to a lost cluster.
    """

    def __init__(
        self,
        client: KafkaClient,
        questions: Questions,
        topic: str,
        trail: Trail,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._questions, self._topic, self._trail, self._clock = client, questions, topic, trail, clock
        self._heard: dict[int, float] = {}
        self._asked: dict[int, Future[OffsetAnswer]] = {}
        self._asked_at = self._checked_at = self._clock()
        self._silence_s = 0.0
        self._warned = False

    def heard(self, partition: int) -> None:
        self._heard[partition] = self._clock()
        self._silence_s = 0.0
        self._warned = False

    def expect(self, partition: int) -> None:
        """Count from now on for *partition*."""
        self._heard[partition] = self._clock()

    def forget(self, partition: int) -> None:
        self._heard.pop(partition, None)
        self._asked.pop(partition, None)

    def check(self, partitions: set[int]) -> set[int]:
        """Return those of *partitions* that their leader says it does not have.

        Raises: KafkaUnreachable, KafkaLoginFailed, CertificateRefused.
        """
        suspects = self._read_answers()
        now = self._clock()
        step_s, self._checked_at = min(now - self._checked_at, _COUNTED_STEP_S), now
        limits = self._client.timeouts
        silent = {p for p in partitions if now - self._heard[p] >= limits.probe_after_s}
        if not silent:
            return suspects
        if not self._asked and now - self._asked_at >= limits.probe_after_s:
            self._asked_at = now
            answers = self._questions.ask_ends(self._topic, silent)
            self._asked = {where.partition: answer for where, answer in answers.items()}
        if silent == partitions:
            self._silence_s += step_s
            self._judge(limits.lost_after_s - limits.probe_after_s, since_s=now - max(self._heard.values()))
        return suspects

    def _judge(self, allowed_s: float, *, since_s: float) -> None:
        if self._trail.login_failed:
            raise self._client.login_failed(self._trail.login_failed)
        doing = f"polling topic {self._topic!r}"
        if self._silence_s > allowed_s:
            raise self._client.unreachable(doing=doing, detail=self._trail.last, waited_s=since_s)
        if self._silence_s > allowed_s / 4 and not self._warned:
            self._warned = True
            log.warning("kafka.silent", topic=self._topic, silent_s=round(since_s, 1), detail=self._trail.last)

    def _read_answers(self) -> set[int]:
        suspects: set[int] = set()
        for partition, answer in list(self._asked.items()):
            if not answer.done():
                continue
            del self._asked[partition]
            failure = answer.exception()
            if failure is None and answer.result().offset != OFFSET_INVALID:
                self.heard(partition)
                self._trail.clear()
            elif isinstance(failure, KafkaException) and as_kafka_error(failure).code() in UNKNOWN_TOPIC:
                suspects.add(partition)
        return suspects
