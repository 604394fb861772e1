"""Clients by location, marks and deletions in a folder, and errors of stores by name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from harness_pipelines.drivers.object_stores import marks
from harness_pipelines.drivers.object_stores.bound import Bound
from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.drivers.object_stores.deletion import batches, delete
from harness_pipelines.drivers.object_stores.marks import check_conditions, create_mark, read_mark, replace_mark
from harness_pipelines.drivers.object_stores.troubles import refusal
from harness_pipelines.spec.object_stores import S3Settings

ONE, OTHER = S3Settings(region="one"), S3Settings(region="other")


def test_a_location_is_reached_by_the_settings_of_its_warehouse():
    bound = Bound()
    bound.bind("s3://b/lake", ONE)
    bound.bind("s3://b/lake-2", OTHER)
    bound.bind("file:///lake", S3Settings(region="never"))
    assert bound.of("s3://b/lake/shop/x.parquet") == ONE
    assert bound.of("s3://b/lake") == ONE
    assert bound.of("s3://b/lake-2/x") == OTHER
    assert bound.of("s3://old/lake/x") == OTHER, "a warehouse that was moved"


def test_spark_is_told_of_a_store_and_of_no_local_folder():
    s3 = S3Settings(endpoint="https://minio.example", access_key="a", secret_key="b")
    told = spark_options("s3://b/lake", s3)
    assert told["io-impl"].endswith("S3FileIO")
    assert (told["s3.endpoint"], told["s3.path-style-access"]) == ("https://minio.example", "true")
    assert spark_options("file:///lake", s3) == {}
    assert "s3.access-key-id" not in spark_options("s3://b/lake", S3Settings())


def test_who_cannot_open_a_mark_does_not_remove_that_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = f"file://{tmp_path}/deep/mark"

    def made_meanwhile(path: str, mode: str, **_: Any) -> Any:
        monkeypatch.undo()
        assert create_mark(place, b"another's")
        raise FileNotFoundError(path)

    monkeypatch.setattr(marks, "open", made_meanwhile, raising=False)
    assert not create_mark(place, b"ours")
    assert (tmp_path / "deep" / "mark").read_bytes() == b"another's"


def test_of_several_that_create_one_mark_at_once_one_did(tmp_path: Path):
    place = f"file://{tmp_path}/deep/mark"
    won: list[bool] = []
    together = threading.Barrier(8)

    def create(number: int) -> None:
        together.wait()
        won.append(create_mark(place, b"%d" % number))

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    seen = read_mark(place)
    assert seen is not None
    check_conditions(place, seen.content)
    assert replace_mark(place, b"new", seen=seen)
    assert read_mark(place) != seen
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["mark"]
    assert read_mark(f"file://{tmp_path}/none") is None


def test_files_that_are_gone_are_deleted_and_folders_stay(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    delete([f"file://{tmp_path}/a", f"file://{tmp_path}/gone"])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        delete([f"file://{tmp_path}"])


def test_local_files_are_deleted_one_by_one_and_those_of_a_store_by_the_thousand():
    local = [f"file:///lake/{n}" for n in range(3)]
    assert [len(part) for part in batches(local, local)] == [1, 1, 1]
    stored = [f"s3://b/{n}" for n in range(2300)]
    assert [len(part) for part in batches(stored, stored)] == [1000, 1000, 300]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("When reading key 'x' in bucket 'b': AWS Error NO_SUCH_BUCKET during GetObject: NoSuchBucket", "bucket"),
        ("status code: 403 Forbidden <Error><Code>AccessDenied</Code>", "grant the rights"),
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", "grant the rights"),
        ("<Code>ExpiredToken</Code><Message>The provided token has expired.", "expired"),
        ("S3Exception: The provided token has expired. (Service: S3, Status Code: 400", "expired"),
        ("<Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock "
         "parameters</Message>", "a default retention"),
        ("<Code>InvalidAccessKeyId</Code>", "does not know these credentials"),
        ("<Code>SignatureDoesNotMatch</Code> status code: 403", "does not know these credentials"),
        ("AuthorizationHeaderMalformed: the region is wrong; expecting 'eu-west-1'", "HARNESS_S3_REGION"),
        ("<Code>PermanentRedirect</Code>", "HARNESS_S3_REGION"),
        ("<Code>RequestTimeTooSkewed</Code>", "clock"),
        ("non-2xx status code: 403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code>", "clock"),
        ("AWS Error REQUEST_TIME_TOO_SKEWED during ListObjectsV2 operation", "clock"),
        ("Received redirect without LOCATION, this normally indicates an incorrectly configured region", "S3_REGION"),
        ("non-2xx status code: 403 Forbidden: <Error><Code>InvalidObjectState</Code>", "archive"),
        ("AWS Error UNKNOWN (HTTP status 400): Unable to parse ExceptionName: KMS.DisabledException", "KMS key"),
        ("non-2xx status code: 400 Bad Request: <Error><Code>KMS.KMSInvalidStateException</Code>", "KMS key"),
    ],
)  # fmt: skip
def test_what_only_a_person_can_end_has_a_name(text: str, said: str):
    assert said in (refusal(text) or "")


@pytest.mark.parametrize("text", ["SlowDown", "503 Service Unavailable", "RequestTimeout", "connection reset", "500"])
def test_what_ends_by_itself_is_no_refusal(text: str):
    assert refusal(text) is None
