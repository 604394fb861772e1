"""Stands between a client and an object store: counts requests, and does to them what networks and stores do."""

from __future__ import annotations

import hashlib
import http.client
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from harness_pipelines.spec.object_stores import S3Settings

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
#: Files that never change and are read whole. Data files are read in parts; the owner's mark is read again on purpose.
WHOLE = re.compile(r"/metadata/[^/]+\.(?:json|avro)$")
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
_TIME = re.compile(rb"<(LastModified|Initiated)>([^<]+)</")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the store sees it."""

    #: HEAD, GET, PUT, DELETE, LIST, BULK (a delete of many), CREATE and REPLACE (conditional PUTs), POST; of the bucket
    #: UPLOADS and VERSIONING
    kind: str
    path: str  #: bucket and key, as in the address
    agent: str = ""  #: the client, as it calls itself
    prefix: str = ""  #: of the keys that a listing asks for
    token: str = ""  #: of a page of a listing: where the one before it ended

    @classmethod
    def of(cls, method: str, address: str, headers: Mapping[str, str]) -> Request:
        place = urlsplit(address)
        query = parse_qs(place.query, keep_blank_values=True)
        names = {name.lower() for name in headers}
        if method == "GET" and "list-type" in query:
            method = "LIST"
        elif method == "GET" and (asked := {"uploads", "versioning"} & query.keys()):
            [method] = (one.upper() for one in asked)
        elif method == "POST" and "delete" in query:
            method = "BULK"
        elif method == "PUT" and "if-none-match" in names:
            method = "CREATE"
        elif method == "PUT" and "if-match" in names:
            method = "REPLACE"
        agent = next((value for name, value in headers.items() if name.lower() == "user-agent"), "")
        prefix, token = ("".join(query.get(name, ())) for name in ("prefix", "continuation-token"))
        return cls(kind=method, path=place.path, agent=agent, prefix=prefix, token=token)


def looks_of_expire(made: Sequence[Request]) -> list[int]:
    """The place in *made* of each look of expire: where it asks for the cut-off uploads of its first folder."""
    asked = [(at, one.prefix) for at, one in enumerate(made) if one.kind == "UPLOADS"]
    return [at for at, prefix in asked if prefix == asked[0][1]]


def read_twice(made: Iterable[Request]) -> list[str]:
    """Metadata that one process read more than once; Spark and Python are two."""
    reads = Counter(
        ("java" in one.agent.lower(), one.path) for one in made if one.kind == "GET" and WHOLE.search(one.path)
    )
    return sorted(path for (_, path), times in reads.items() if times > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a request: exactly one of the ways."""

    lost: bool = False  #: the store did it, and nobody hears so
    cut: bool = False  #: half of the answer's body comes, then the connection ends
    accepted: bool = False  #: a write is answered as a store does that looks at no condition; the store never sees it
    changed: Callable[[bytes], bytes] | None = None  #: what comes of the body of the store's answer, which ends well
    status: int = 0  #: this is answered, and the store never sees the request
    body: str = ""
    headers: Mapping[str, str] | None = None

    @classmethod
    def named(cls, status: int, code: str) -> Fault:
        """The store's own error."""
        return cls(status=status, body=ERROR.format(code=code))


class StoreProxy:
    """A proxy of the store at *s3*; `settings` reach the store by it."""

    def __init__(self, s3: S3Settings) -> None:
        assert s3.endpoint is not None
        self._to = urlsplit(s3.endpoint)
        self._s3 = s3
        self._lock = threading.Lock()
        self._rules: list[tuple[Callable[[Request], bool], Fault, int]] = []
        self.seen: list[Request] = []
        self.page_keys = 0  #: how many keys a page of a listing has at most, if not 0: of a store that checks no login
        self.ahead = timedelta(0)  #: of all others the store's clock goes, behind them if negative
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> StoreProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def settings(self) -> S3Settings:
        return replace(self._s3, endpoint=f"http://127.0.0.1:{self._server.server_port}")

    def fail(self, kind: str | Sequence[str], fault: Fault, *, times: int = 1_000_000, path: str = "") -> None:
        """Let *fault* meet the next *times* requests of *kind*, or of several, whose path has *path* in it."""
        kinds = (kind,) if isinstance(kind, str) else tuple(kind)
        with self._lock:
            self._rules.append((lambda one: one.kind in kinds and path in one.path, fault, times))

    def fail_later_pages(self, fault: Fault) -> None:
        """Let *fault* meet each page of a listing but the first."""
        with self._lock:
            self._rules.append((lambda one: one.kind == "LIST" and one.token != "", fault, 1_000_000))

    def forget(self) -> None:
        """Count from now on."""
        with self._lock:
            self.seen.clear()

    def heal(self) -> None:
        with self._lock:
            self._rules.clear()

    def made(self) -> list[Request]:
        """All requests until now."""
        with self._lock:
            return list(self.seen)

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(one.kind for one in self.seen)

    def _fault_of(self, request: Request) -> Fault | None:
        with self._lock:
            self.seen.append(request)
            for at, (fits, fault, times) in enumerate(self._rules):
                if times and fits(request):
                    self._rules[at] = (fits, fault, times - 1)
                    return fault
        return None

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:  # self is the handler's below
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

            def answer(self) -> None:
                body = self.body()
                fault = proxy._fault_of(Request.of(self.command, self.path, dict(self.headers.items())))
                if fault is not None and fault.accepted:
                    self.tell(200, {"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}, b"")
                    return
                if fault is not None and fault.status:
                    self.tell(fault.status, fault.headers or {}, fault.body.encode())
                    return
                assert proxy._to.hostname is not None
                store = http.client.HTTPConnection(proxy._to.hostname, proxy._to.port, timeout=30)
                try:
                    asked = self.path
                    if proxy.page_keys and "list-type=" in asked:
                        asked = f"{re.sub('max-keys=[0-9]+&?', '', asked)}&max-keys={proxy.page_keys}"
                    store.putrequest(self.command, asked, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "expect":
                            store.putheader(name, value)
                    if self.is_chunked():
                        store.endheaders(iter([body]), encode_chunked=True)
                    else:
                        store.endheaders(body or None)
                    told = store.getresponse()
                    content = told.read()
                finally:
                    store.close()
                if fault is not None and fault.lost:
                    self.close_connection = True
                    return
                headers = {name: value for name, value in told.getheaders() if name.lower() not in _HOP}
                if fault is not None and fault.changed is not None:
                    content = fault.changed(content)
                if proxy.ahead:
                    headers, content = _shifted(headers, content, proxy.ahead)
                length = told.getheader("Content-Length") if self.command == "HEAD" else None
                self.tell(told.status, headers, content, length=length, cut=fault is not None and fault.cut)

            def is_chunked(self) -> bool:
                return "chunked" in (self.headers.get("Transfer-Encoding") or "")

            def body(self) -> bytes:
                if not self.is_chunked():
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():  # trailers
                    pass
                return b"".join(parts)

            def tell(
                self,
                status: int,
                headers: Mapping[str, str],
                body: bytes,
                *,
                length: str | None = None,
                cut: bool = False,
            ) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if cut else body)
                self.close_connection = self.close_connection or cut

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

        return Handler


def _shifted(headers: Mapping[str, str], content: bytes, by: timedelta) -> tuple[dict[str, str], bytes]:
    """An answer with the times of files as another clock has them."""

    def of_file(found: re.Match[bytes]) -> bytes:
        at = datetime.fromisoformat(found[2].decode()) + by
        return b"<%s>%s</" % (found[1], at.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode())

    told = dict(headers)
    if modified := told.get("Last-Modified"):
        told["Last-Modified"] = format_datetime(parsedate_to_datetime(modified) + by, usegmt=True)
    return told, _TIME.sub(of_file, content) if told.get("Content-Type", "").endswith("xml") else content
