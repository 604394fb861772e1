"""Delivery of events: an HTTP address, a Kafka topic, or a lineage server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import orjson

from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.extras import needs
from harness_pipelines.ports.events import Event, Producer
from harness_pipelines.secret import redact

TIMEOUT_S = 10.0
SECRET_CHARS_MIN = 8  #: shorter parts of an address are words, such as `api`
ANY_PARTITION = -1  #: the one that the key belongs to
#: Takes a table's name and an event of it, and returns once the event has arrived. Raises: TryAgain.
Delivery = Callable[[str, Event], None]


class NotDelivered(TryAgain):
    """An event did not arrive, or its arrival is unknown: deliver it again."""

    way_on = "nothing with `--follow`; else run the same command again"


@contextmanager
def webhook(url: str) -> Iterator[Delivery]:
    """POST each event to *url* as a JSON object with its table; any answer of 2xx says that it has arrived.

    The header `Idempotency-Key` names the table, its number and the event's: one that comes again has the same, and the
    first one of a table that was dropped and made again has another.
    Raises: UsageError when *url* is no http or https address.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{redact(url)!r} is no address of a webhook; write http://... or https://...")
    shown = _without_path(url)
    with httpx.Client(timeout=TIMEOUT_S) as client:

        def post(table: str, event: Event) -> None:
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"{table}:{event.table_id}:{event.seq}"}
            where = f"event {event.seq} of {table} to {shown}"
            try:
                answer = client.post(url, content=_json(table, event), headers=headers)
            except httpx.HTTPError as error:
                raise NotDelivered(f"{where}: {str(error).replace(url, shown) or type(error).__name__}") from error
            if not answer.is_success:
                said = _without_secret(answer.text, url)[:200]
                raise NotDelivered(f"{where}: it answered {answer.status_code} {said!r}")

        yield post


@contextmanager
def kafka_topic(open_producer: Callable[[], Producer]) -> Iterator[Delivery]:
    """Produce each event to a topic, with the table's name as its key, so that they lie in order in one partition.

    An event that comes again has the same `seq`.
    """
    made: list[Producer] = []

    def produce(table: str, event: Event) -> None:
        if not made:
            made.append(open_producer())
        try:
            made[0].send(ANY_PARTITION, _json(table, event), lambda _offset, _at: None, key=table.encode())
            made[0].flush(TIMEOUT_S)
        except TryAgain:
            made.clear()  # what it has queued would come behind a later event
            raise

    yield produce


@contextmanager
def openlineage(tell: Callable[[str, Event], Iterable[Any]]) -> Iterator[Delivery]:
    """Emit what *tell* makes of each event, the ``RunEvent``s of a run or nothing, by OpenLineage's own client.

    Its transport is configured in its own way (``OPENLINEAGE_URL``, ``openlineage.yml``, ...).
    Raises: ExtraMissing; UsageError when the client would send nothing anywhere.
    """
    with needs("openlineage", "--openlineage"):
        from openlineage.client import OpenLineageClient
    client = OpenLineageClient()
    kind = client.transport.kind
    if kind in {"noop", "console"} and not client.config.transport:  # they are the defaults of unset settings
        raise UsageError("where is the lineage server? Set OPENLINEAGE_URL, or write an openlineage.yml")
    if kind not in {"noop", "console", "http"}:  # others return before it is known whether the event has arrived
        raise UsageError(f"OpenLineage's {kind} transport does not say whether an event has arrived: use http")

    def emit(table: str, event: Event) -> None:
        runs = tell(table, event)
        try:
            for run in runs:
                client.emit(run)
        except Exception as error:  # of whatever transport
            where = f"event {event.seq} of {table} by OpenLineage's {kind} transport"
            raise NotDelivered(f"{where}: {redact(str(error)) or type(error).__name__}") from error

    try:
        yield emit
    finally:
        client.close()


def _without_path(url: str) -> str:
    """The server that *url* names: the path and the query of a webhook are often its secret."""
    place = urlsplit(url)
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}/..."


def _without_secret(text: str, url: str) -> str:
    """*text* of a server that may quote what it was asked for: the path and the query of *url*, whole or in parts."""
    place = urlsplit(url)
    parts = {place.path, place.query, *place.path.split("/"), *(value for _, value in parse_qsl(place.query))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= SECRET_CHARS_MIN:
            text = text.replace(part, "...").replace(unquote(part), "...")
    return text


def _json(table: str, event: Event) -> bytes:
    return orjson.dumps({"table": table, **event.to_json()})
