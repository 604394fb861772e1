"""What a gateway answers is never taken for a store: a portal, a proxy or the wrong port say yes to everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness_pipelines.drivers import files
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.drivers.object_stores.marks import Marked, create_mark, read_end, read_mark, replace_mark
from harness_pipelines.drivers.object_stores.troubles import StoreRefused
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog, read_metadata, view_schema
from harness_pipelines.lakes.iceberg.checked_io import StoreIO, opened_io
from harness_pipelines.lakes.iceberg.private.tables import Changes
from harness_pipelines.lakes.iceberg.read.manifests import listed_in
from harness_pipelines.lakes.owner import Ownership
from harness_pipelines.ledgers.postgres.acts.drop import purge
from harness_pipelines.ports.errors import LakeAway, ManifestDamaged, MetadataMissing
from harness_pipelines.ports.lake import reachable
from harness_pipelines.spec.object_stores import S3Settings

PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please <b>sign in<br></body></html>"
XML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Please sign in</p></body></html>'
EMPTY = b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>'
NO_KEY = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
NO_BUCKET = NO_KEY.replace(b"NoSuchKey", b"NoSuchBucket")
SAID = "the endpoint answers, but is no object store"


@dataclass
class Answer:
    """To every request, but those for which *to* has another one."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/html; charset=utf-8"})


GATEWAYS = {
    "a page": Answer(PAGE),
    "a page in XML": Answer(XML),
    "the page of an application": Answer(XML, headers={"Content-Type": "text/html", "ETag": '"5f-17"'}),
    "nothing at all": Answer(b"", headers={}),
}


class Gateway:
    """Answers by *to* where it has the method, with *answer* otherwise."""

    def __init__(self, answer: Answer, to: dict[str, Answer]) -> None:
        self.asked: list[str] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind = "LIST" if "list-type" in self.path else self.command
                gateway.asked.append(kind)
                found = to.get(kind, answer)
                self.send_response(found.status)
                for name, value in {**found.headers, "Content-Length": str(len(found.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(found.body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # as the library calls them

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def behind(answer: Answer, **to: Answer) -> Iterator[tuple[str, Gateway]]:
    """A warehouse whose endpoint is the gateway."""
    gateway = Gateway(answer, to)
    thread = threading.Thread(target=gateway.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        port = gateway.server.server_port
        warehouse = f"s3://b/lake{port}"
        BOUND.bind(warehouse, S3Settings(endpoint=f"http://127.0.0.1:{port}", access_key="a", secret_key="b"))
        yield warehouse, gateway
    finally:
        gateway.server.shutdown()
        gateway.server.server_close()
        thread.join()


def delete_as_pyiceberg(place: str) -> None:
    StoreIO().delete(f"{place}/x")


ACTS: dict[str, Callable[[str], object]] = {
    "list": lambda place: list(files.listed(place)),
    "list what must be there": lambda place: list(files.listed(place, allow_not_found=False)),
    "size": lambda place: files.size_of(f"{place}/x"),
    "read": lambda place: read_mark(f"{place}/x"),
    "read the end": lambda place: read_end(f"{place}/x", 8),
    "delete": lambda place: files.delete([f"{place}/x", f"{place}/y"]),
    "delete as PyIceberg": delete_as_pyiceberg,
    "purge": purge,
}
#: A page with an ETag is what a server of pages answers to GET and HEAD, and it takes no other request.
WRITES: dict[str, Callable[[str], object]] = {
    "create": lambda place: create_mark(f"{place}/x", b"ours"),
    "replace": lambda place: replace_mark(f"{place}/x", b"ours", seen=Marked(b"theirs", '"1"')),
}


#: No server of pages takes a PUT; that a store keeps its conditions is checked after the first one.
ASKED = [(answer, act) for answer in GATEWAYS for act in ACTS] + [
    (answer, act) for answer, gateway in GATEWAYS.items() if "ETag" not in gateway.headers for act in WRITES
]


@pytest.mark.parametrize(("answer", "act"), ASKED)
def test_what_a_gateway_says_is_believed_by_nobody(answer: str, act: str):
    with behind(GATEWAYS[answer]) as (place, _), pytest.raises(LakeAway) as caught, reachable("shop.orders", "at work"):
        ({**ACTS, **WRITES})[act](place)
    if act != "read the end":  # where the client refuses the answer before its headers can be looked at
        assert SAID in str(caught.value) or answer == "nothing at all"


@pytest.mark.parametrize("answer", GATEWAYS)
def test_no_gateway_owns_a_warehouse(answer: str):
    database = SimpleNamespace(
        rows=lambda _: [{"ledger_id": "l", "instance": "i", "epoch": "e", "timeline": 1, "database": "d"}],
        run=lambda _: pytest.fail("the epoch was changed while the store is away"),
        dsn="host=db",
    )
    with behind(GATEWAYS[answer]) as (place, _):
        ownership: Any = Ownership(database, warehouse=place)  # type: ignore[arg-type]
        for act in (ownership.confirm, ownership.check, ownership.stranger, ownership.take_over, ownership.follow):
            with pytest.raises(LakeAway, match=SAID):
                act()


@pytest.mark.parametrize("code", ["NoSuchKey", "AccessDenied"])
def test_a_folder_is_empty_to_who_may_list_it_whatever_else_the_login_may(code: str):
    answer = Answer(NO_KEY.replace(b"NoSuchKey", code.encode()), status=404 if code == "NoSuchKey" else 403)
    with behind(answer, LIST=Answer(EMPTY)) as (place, _):
        assert list(files.listed(place)) == []
    with behind(Answer(PAGE, status=403), LIST=Answer(EMPTY)) as (place, _), pytest.raises(StoreRefused):
        list(files.listed(place))


def test_an_empty_folder_of_a_store_is_empty_and_asked_about_once_more():
    with behind(Answer(NO_KEY, status=404), LIST=Answer(EMPTY)) as (place, gateway):
        assert list(files.listed(place)) == []
        assert gateway.asked == ["LIST", "GET"]
        assert purge(place)
        with pytest.raises(FileNotFoundError):
            list(files.listed(place, allow_not_found=False))
        assert files.size_of(f"{place}/x") is None


def test_a_bucket_that_is_missing_is_no_empty_folder():
    with behind(Answer(NO_BUCKET, status=404)) as (place, _):
        for act in (lambda: list(files.listed(place)), lambda: purge(place)):
            with pytest.raises(StoreRefused, match="there is no such bucket"):
                act()


@pytest.mark.parametrize(("status", "said"), [(403, "grant the rights"), (400, "have expired, or the bucket")])
def test_a_size_that_is_refused_is_named_though_the_answer_has_no_body(status: int, said: str):
    with behind(Answer(b"", status=status)) as (place, _), pytest.raises(StoreRefused, match=said):
        files.size_of(f"{place}/x")


def test_a_file_that_was_copied_into_the_folder_of_a_store_is_read_though_it_has_no_version():
    with behind(Answer(b"ours", headers={"Content-Type": "binary/octet-stream"})) as (place, _):
        assert files.size_of(f"{place}/x") == 4
        assert read_mark(f"{place}/x") == Marked(b"ours", None)


def answered(content: bytes) -> dict[str, str]:
    """The headers of a store that kept *content*."""
    tag = md5(content, usedforsecurity=False).hexdigest()
    return {"ETag": f'"{tag}"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT", "Content-Type": "binary/octet-stream"}


WROTE = Answer(b"", headers={"ETag": '"0f343b0931126a20f133d67c2b018a3b"'})  #: whatever was sent


@pytest.mark.parametrize("there", [Answer(NO_KEY, status=404), Answer(PAGE), Answer(b"", headers=answered(b""))])
@pytest.mark.parametrize("act", WRITES)
def test_a_write_whose_answer_has_not_the_tag_of_its_content_is_looked_at(act: str, there: Answer):
    with (
        behind(there, PUT=WROTE) as (place, gateway),
        pytest.raises(LakeAway, match="did not keep|no object store"),
        reachable("shop.orders", "at work"),
    ):
        WRITES[act](place)
    assert gateway.asked == ["PUT", "HEAD"]


@pytest.mark.parametrize("act", WRITES)
def test_a_store_that_encrypts_by_a_key_names_its_files_otherwise_and_is_asked_for_their_length(act: str):
    tag = {"ETag": '"0f343b0931126a20f133d67c2b018a3b"', "Content-Type": "binary/octet-stream"}
    with behind(Answer(b"ours", headers=tag)) as (place, gateway):
        assert WRITES[act](place)
        assert gateway.asked == ["PUT", "HEAD"]


@pytest.mark.parametrize("act", WRITES)
def test_a_write_that_a_store_answers_with_the_tag_of_its_content_is_believed(act: str):
    with behind(Answer(NO_KEY, status=404), PUT=Answer(b"", headers=answered(b"ours"))) as (place, gateway):
        assert WRITES[act](place)
        assert gateway.asked == ["PUT"]


def test_what_could_not_be_understood_is_asked_for_again(tmp_path: Path):
    """A proxy that ends an answer early, and counts what it sends, damages no file: the next answer is another one."""
    catalog = StagingCatalog("harness", warehouse=tmp_path.as_uri())
    made = catalog.stage_new(("shop", "orders"), schema=view_schema([]), location=tmp_path.as_uri(), properties={})
    with Changes(made) as transaction, transaction.update_snapshot().fast_append():
        pass
    [snapshot] = made.metadata.snapshots
    answer = Answer(b"", headers={"ETag": '"1"', "Content-Type": "binary/octet-stream"})
    with behind(answer) as (place, gateway):
        for written, read, trouble in (
            (made.metadata_location, partial(read_metadata, opened_io(), f"{place}/metadata/1.json"), MetadataMissing),
            (snapshot.manifest_list, partial(listed_in, f"{place}/metadata/1.avro", opened_io()), ManifestDamaged),
        ):
            whole = Path(urlsplit(written).path).read_bytes()
            answer.body = whole[: len(whole) // 2]
            with pytest.raises(trouble):
                read()
            answer.body = whole
            assert read() is not None
            read()
        assert gateway.asked == ["GET"] * 4


def test_what_a_store_has_is_asked_about_once():
    head = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT", "Content-Type": "binary/octet-stream"}
    listing = EMPTY.replace(
        b"</Name>",
        b"</Name><Contents><Key>k/x</Key><Size>4</Size><ETag>1</ETag>"
        b"<LastModified>2026-11-27T12:00:00.000Z</LastModified></Contents>",
    )
    with behind(Answer(b"ours", headers=head), LIST=Answer(listing)) as (place, gateway):
        [found] = list(files.listed("s3://b/k".replace("s3://b", place.rpartition("/")[0])))
        assert (found.bytes, found.modified) == (4, datetime(2026, 11, 27, 12, tzinfo=UTC))
        assert files.size_of(f"{place}/x") == 4
        assert read_mark(f"{place}/x") == Marked(b"ours", '"1"')
        assert gateway.asked == ["LIST", "HEAD", "GET"]
