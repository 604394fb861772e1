"""A schema registry for tests: Confluent's REST API over HTTP, as far as producers and the harness use it.

It keeps schemas by id, and subjects of their versions with references. It can be slow, broken, closed to strangers,
and away.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

Reference = Mapping[str, Any]  #: name, subject, version


class RegistryServer:
    """The registry; answers until it is closed."""

    def __init__(self, *, login: str | None = None, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """*login*: ``user:password`` that it asks for."""
        self.login = login
        self.fail_with: int | None = None  #: answer everything with this status
        self.answer_with: Any = _error(50001, "Error in the backend data store")  #: and with this, while it fails
        self.delay_s = 0.0
        self.requests: Counter[str] = Counter()  #: by path
        self._lock = threading.Lock()
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, dict[int, int]] = {}  #: version -> id
        self._soft: set[tuple[str, int]] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._scheme, self._host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
        if tls is not None:  # the handshake is the connection's own thread's, at its first read
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self.port}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def register(
        self, subject: str, schema: str | Mapping[str, Any], *, kind: str = "AVRO", references: Sequence[Reference] = ()
    ) -> int:
        """Register as a producer does; returns the schema's id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        wanted = {"schema": text, "schemaType": kind, "references": [dict(one) for one in references]}
        with self._lock:
            known = [number for number, found in self._schemas.items() if found == wanted]
            number = known[0] if known else max(self._schemas, default=0) + 1
            self._schemas[number] = wanted
            versions = self._subjects.setdefault(subject, {})
            if number not in versions.values():
                versions[max(versions, default=0) + 1] = number
        return number

    def delete(self, subject: str, *, permanent: bool = False) -> None:
        """Delete a subject: softly it is still found by id and by those that ask for what is deleted."""
        with self._lock:
            versions = self._subjects[subject]
            self._soft |= {(subject, version) for version in versions}
            if permanent:
                for number in self._subjects.pop(subject).values():
                    self._schemas.pop(number, None)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match method, parts:
            case "GET", ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                return (200, _shown(found)) if found else (404, _error(40403, f"Schema {number} not found"))
            case "GET", ["subjects"]:
                return 200, sorted(self._subjects)
            case "GET", ["subjects", subject, "versions", version]:
                known = self._subjects.get(subject, {}).get(int(version))
                hidden = (subject, int(version)) in self._soft and "deleted=true" not in query.lower()
                if known is None or hidden:
                    return 404, _error(40402, f"Version {version} not found")
                shown = _shown(self._schemas[known])
                return 200, {"subject": subject, "version": int(version), "id": known, **shown}
            case "POST", ["subjects", subject, "versions"]:
                kind, references = body.get("schemaType", "AVRO"), body.get("references", ())
                return 200, {"id": self.register(subject, body["schema"], kind=kind, references=references)}
            case "DELETE", ["subjects", subject]:
                self.delete(subject, permanent="permanent=true" in query.lower())
                return 200, []
        return 404, {"message": "HTTP 404 Not Found", "error_code": 404}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve("GET")

            def do_POST(self) -> None:
                self._serve("POST")

            def do_DELETE(self) -> None:
                self._serve("DELETE")

            def _serve(self, method: str) -> None:
                url = urlparse(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                registry.requests[url.path] += 1
                if registry.delay_s:
                    time.sleep(registry.delay_s)
                if registry.fail_with is not None:
                    status, answer = registry.fail_with, registry.answer_with
                elif registry.login is not None and self.headers.get("Authorization") != _basic(registry.login):
                    status, answer = 401, _error(401, "Unauthorized")
                else:
                    status, answer = registry.answer(method, url.path, url.query, body)
                data = json.dumps(answer).encode()
                with suppress(ConnectionError):  # who asked may have waited long enough
                    self.send_response(status)
                    self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _shown(schema: dict[str, Any]) -> dict[str, Any]:
    """As the registry writes it: Avro is not named, and no references are left out."""
    found = {"schema": schema["schema"]}
    if schema["schemaType"] != "AVRO":
        found["schemaType"] = schema["schemaType"]
    return found | ({"references": schema["references"]} if schema["references"] else {})


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


@contextmanager
def serving(**options: Any) -> Iterator[RegistryServer]:
    server = RegistryServer(**options)
    try:
        yield server
    finally:
        server.close()
