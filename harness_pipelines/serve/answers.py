"""Answers in the JSON forms of Iceberg's REST protocol: its errors, lists in pages, and a table with its metadata."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from harness_pipelines.errors import HarnessError, OutcomeUnknown, Recovery, TryAgain, UsageError
from harness_pipelines.serve.values import CutAnswer, TableNotServed
from harness_pipelines.show.output import printable

JSON = "application/json"
SHOWN_MAX = 200  #: characters of what a client wrote that an error repeats
PAGE_MAX = 1000
RETRY_S = 1
NOT_STORED = {"cache-control": "no-store", "pragma": "no-cache"}


class Refused(Exception):
    """A request that gets an error of the protocol as its answer."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, headers

    def answer(self) -> Response:
        return error(self.status, self.kind, self.message, headers=self.headers)


def shown(text: str) -> str:
    """What a client wrote, short and on one line."""
    return printable(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequestException", message)


def no_such_table(namespace: str, table: str, snapshot: str = "") -> Refused:
    """The same for a table that does not exist, in *snapshot* if one is named, and for one that may not be seen."""
    where = f" in snapshot {shown(snapshot)}" if snapshot else ""
    return Refused(404, "NoSuchTableException", f"Table does not exist{where}: {shown(namespace)}.{shown(table)}")


def no_such_namespace(namespace: str) -> Refused:
    return Refused(404, "NoSuchNamespaceException", f"Namespace does not exist: {shown(namespace)}")


def no_such_view(namespace: str, view: str) -> Refused:
    return Refused(404, "NoSuchViewException", f"View does not exist: {shown(namespace)}.{shown(view)}")


def read_only() -> Refused:
    said = "this catalog is read-only: a table of the harness is written by its topic, so produce records to it"
    return Refused(403, "ForbiddenException", said)


def of_error(error: HarnessError) -> Refused:
    """The answer to what the tables behind the server raise."""
    passes = error.exit_code in (TryAgain.exit_code, OutcomeUnknown.exit_code) or error.recovery is Recovery.REFRESH
    if passes:  # a load changes nothing that a second one could double
        return Refused(503, "ServiceUnavailableException", str(error), {"retry-after": str(RETRY_S)})
    if isinstance(error, UsageError):
        return bad_request(str(error))
    if isinstance(error, TableNotServed):
        return Refused(501, "UnsupportedOperationException", str(error))
    return Refused(500, type(error).__name__, f"{error} Way on: {error.todo()}")


def before_login(error: HarnessError) -> Refused:
    """The answer to a client that is not known: what is wrong behind the server names addresses and logins."""
    if of_error(error).status == 503:
        said = "the token cannot be looked up now: send the request again"
        return Refused(503, "ServiceUnavailableException", said, {"retry-after": str(RETRY_S)})
    return Refused(500, "InternalServerError", "the token cannot be looked up; the server's log says why")


def error(status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    return answer({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def answer(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type=JSON)


def table(cut: CutAnswer) -> Response:
    """The metadata goes between the other members as it is: it may have megabytes, and is never parsed here."""
    others: dict[str, Any] = {"config": dict(cut.storage.config)}
    if cut.storage.config:
        others["storage-credentials"] = cut.storage.credentials()
    content = b'{"metadata-location":%b,"metadata":%b,%b' % (
        json.dumps(cut.metadata_location).encode(),
        cut.metadata,
        json.dumps(others).encode()[1:],
    )
    return Response(content, media_type=JSON, headers=_headers(cut.etag))


def unchanged(etag: str) -> Response:
    return Response(status_code=304, headers=_headers(etag))


def _headers(etag: str) -> Mapping[str, str]:
    """No proxy in between answers with a table that another client may see, or with an older cut."""
    return {"etag": etag, "cache-control": "private, no-cache"}


def names_tag(tags: str | None, etag: str) -> bool:
    """Whether the header ``If-None-Match`` names *etag*; a weak form of it has the same rows, too."""
    found = {tag.strip().removeprefix("W/") for tag in (tags or "").split(",")}
    return "*" in found or etag in found


def page(names: Iterable[str], token: str | None, size: str | None) -> tuple[Sequence[str], str | None]:
    """One page of *names* by their order, and the token of the next one; all of them where *token* is None.

    A token is the last name that was given, so tables that come and go in between move no page.
    Raises: Refused for a token or size that is none.
    """
    found = sorted(names)
    if token is None:
        return found, None
    if size is not None and not (size.isascii() and size.isdigit() and 0 < len(size) < 10 and int(size)):
        raise bad_request(f"pageSize {shown(size)!r} is not a number above 0")
    count = min(int(size or PAGE_MAX), PAGE_MAX)
    if token:
        after = _decoded(token)
        found = [name for name in found if name > after]
    more = len(found) > count
    return found[:count], _encoded(found[count - 1]) if more else None


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as wrong:
        raise bad_request(f"pageToken {shown(token)!r} is not one of this server") from wrong
