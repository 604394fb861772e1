"""What networks and stores do to requests: nothing is lost, nothing has two owners, and each error has a name."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest

from harness_pipelines.drivers.files import listed, opened
from harness_pipelines.drivers.object_stores import deletion
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.drivers.object_stores.bucket import abort_uploads, keeps_deleted
from harness_pipelines.drivers.object_stores.clients import administration, bucket_of, objects
from harness_pipelines.drivers.object_stores.deletion import SomeLeft, delete
from harness_pipelines.drivers.object_stores.marks import StoreUnfit, create_mark, read_mark
from harness_pipelines.drivers.object_stores.troubles import StoreRefused
from harness_pipelines.lakes.iceberg.checked_io import CheckedIO, StoreIO, opened_io
from harness_pipelines.lakes.owner import MARK, Ownership
from harness_pipelines.ledgers.postgres.acts.drop import purge, purge_noted, to_purge
from harness_pipelines.ports.errors import LakeAway, WarehouseTaken
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.lake.file_digests import Digest
from harness_pipelines.services import Endpoints
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.store_proxy import Fault, StoreProxy
from harness_pipelines_tests.unit.lakes.test_owner import Ledger

SLOW_DOWN = Fault.named(503, "SlowDown")


@pytest.fixture
def place(proxy: StoreProxy) -> str:
    """A new warehouse, reached by the proxy."""
    made = f"s3://harness/{uuid.uuid4().hex[:10]}"
    BOUND.bind(made, proxy.settings)
    return made


def fill(place: str, *names: str) -> list[str]:
    store, key = objects(place)
    for name in names:
        obstore.put(store, f"{key}/{name}", b"x" * 1000)
    return [f"{place}/{name}" for name in names]


def owner(place: str) -> Ownership:
    ledger: Any = Ledger()
    return Ownership(ledger, warehouse=place)


def confirmed(found: list[Ownership]) -> list[Ownership]:
    """Those that own the warehouse, of some that ask at the same moment."""
    together, won = threading.Barrier(len(found)), []

    def ask(one: Ownership) -> None:
        together.wait()
        try:
            one.confirm()
        except WarehouseTaken:
            return
        won.append(one)

    threads = [threading.Thread(target=ask, args=(one,)) for one in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_of_ledgers_that_start_together_exactly_one_owns_the_warehouse(place: str, proxy: StoreProxy):
    for number in range(10):
        here = f"{place}/{number}"
        ledgers = [owner(here) for _ in range(12)]
        [winner] = confirmed(ledgers)
        assert confirmed(ledgers) == [winner]


def test_of_copies_that_take_over_together_exactly_one_has_it_at_the_end(place: str):
    owner(place).confirm()
    takers = [owner(place) for _ in range(6)]
    together = threading.Barrier(len(takers))

    def take(one: Ownership) -> None:
        together.wait()
        with suppress(WarehouseTaken):
            one.take_over()

    threads = [threading.Thread(target=take, args=(one,)) for one in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(confirmed(takers)) == 1


def test_a_mark_whose_answer_was_lost_is_its_owners(place: str, proxy: StoreProxy):
    proxy.fail("CREATE", Fault(lost=True), times=1)
    mine = owner(place)
    mine.confirm()
    assert proxy.counts()["CREATE"] >= 2, "the client asked again"
    with pytest.raises(WarehouseTaken):
        owner(place).confirm()


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(place: str, proxy: StoreProxy):
    proxy.fail("CREATE", Fault(accepted=True))
    with pytest.raises(StoreUnfit, match="ignores If-None-Match"):
        owner(place).confirm()
    proxy.heal()
    proxy.fail("REPLACE", Fault(accepted=True))
    with pytest.raises(StoreUnfit, match="ignores If-Match"):
        owner(place).confirm()
    assert [file.path for file in listed(place)] == [f"{place}/{MARK}"]


def test_a_thousand_files_are_deleted_by_one_request(place: str, proxy: StoreProxy):
    files = fill(place, *(f"data/{n}.parquet" for n in range(40)))
    delete([*files, *(f"{place}/gone/{n}" for n in range(960))])
    assert proxy.counts()["BULK"] == 1
    assert proxy.counts()["DELETE"] + proxy.counts()["HEAD"] == 0
    assert list(listed(place)) == []


def test_a_delete_whose_answer_was_lost_is_made_again(place: str, proxy: StoreProxy):
    proxy.fail("BULK", Fault(lost=True), times=1)
    delete(fill(place, "a", "b"))
    assert list(listed(place)) == []


def test_what_a_store_says_it_deleted_and_did_not_is_an_error_and_goes_by_the_next_call(place: str, proxy: StoreProxy):
    files = fill(place, "a", "b")
    said = "<DeleteResult><Error><Key>{}</Key><Code>InternalError</Code><Message>m</Message></Error></DeleteResult>"
    proxy.fail("BULK", Fault(status=200, body=said.format(files[0].partition("harness/")[2])))
    with pytest.raises(OSError, match="did not delete|InternalError"):
        purge(place)
    proxy.heal()
    purge(place)
    assert list(listed(place)) == []


def test_a_file_that_a_store_keeps_holds_up_no_file_of_another_request(
    place: str, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deletion, "AT_ONCE", 2)
    files = fill(place, "a", "b", "c", "d", "e")
    said = "<DeleteResult><Error><Key>{}</Key><Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>"
    proxy.fail("BULK", Fault(status=200, body=said.format(files[0].partition("harness/")[2])), times=1)
    with pytest.raises(SomeLeft, match="locked"):
        delete(files)
    assert [file.path for file in listed(place)] == files[:2], "the next listing says what is to be deleted again"
    delete(files)
    assert list(listed(place)) == []


def begin_upload(file: str) -> None:
    """An upload of several parts, as a writer leaves it that is killed: no listing shows it."""
    client, (bucket, key) = administration(file), bucket_of(file)
    upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 1000)


def uploads(place: str) -> list[str]:
    bucket, key = bucket_of(place)
    found = administration(place).list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", [])
    return sorted(f"s3://{bucket}/{upload['Key']}" for upload in found)


def test_uploads_that_were_cut_off_are_aborted_by_age_and_in_their_folder_alone(place: str):
    mine, other = f"{place}/orders/a.parquet", f"{place}/orders2/b.parquet"
    for file in (mine, other):
        begin_upload(file)
    now = datetime.now(UTC)
    assert abort_uploads(f"{place}/orders", before=now - timedelta(hours=1)) == 0
    assert uploads(place) == [mine, other]
    assert abort_uploads(f"{place}/orders", before=now + timedelta(hours=1)) == 1
    assert uploads(place) == [other]


@pytest.mark.parametrize("code", ["AccessDenied", "NotImplemented"])
def test_who_may_not_ask_for_uploads_or_versions_goes_on_without(place: str, proxy: StoreProxy, code: str):
    begin_upload(f"{place}/a")
    for kind in ("UPLOADS", "VERSIONING"):
        proxy.fail(kind, Fault.named(403, code))
    assert abort_uploads(place, before=datetime.now(UTC) + timedelta(hours=1)) == 0
    assert keeps_deleted(place) is None
    proxy.heal()
    assert uploads(place) == [f"{place}/a"]


@pytest.mark.parametrize(("said", "keeps"), [("<Status>Enabled</Status>", True), ("", False)])
def test_a_bucket_that_keeps_what_is_deleted_is_known(place: str, proxy: StoreProxy, said: str, keeps: bool):
    proxy.fail("VERSIONING", Fault(status=200, body=f"<VersioningConfiguration>{said}</VersioningConfiguration>"))
    assert keeps_deleted(place) is keeps


def test_odd_names_are_written_listed_and_deleted_as_they_are(place: str):
    names = ["a b/c=d/x.parquet", "p%2Fq", "plus+x", "ünï", "q~(1)!'*", "x#y"]
    for name in names:
        system, path = opened(f"{place}/{name}")
        with system.open_output_stream(path) as stream:
            stream.write(b"x")
    assert sorted(file.path for file in listed(place)) == sorted(f"{place}/{name}" for name in names)
    purge(place)
    assert list(listed(place)) == []


def test_folders_whose_names_begin_alike_are_apart(place: str):
    fill(place, "orders/a", "orders2/b", "orders-1/c")
    assert [file.path for file in listed(f"{place}/orders")] == [f"{place}/orders/a"]
    purge(f"{place}/orders")
    assert sorted(file.path for file in listed(place)) == [f"{place}/orders-1/c", f"{place}/orders2/b"]


@pytest.mark.parametrize("kind", ["GET", "LIST", "CREATE", "BULK"])
def test_a_store_that_asks_to_be_asked_less_for_a_moment_is_asked_again(place: str, proxy: StoreProxy, kind: str):
    proxy.fail(kind, SLOW_DOWN, times=1)
    assert create_mark(f"{place}/mark", b"x")
    assert read_mark(f"{place}/mark") is not None
    assert len(list(listed(place))) == 1
    purge(place)
    assert list(listed(place)) == []


def test_an_answer_that_is_cut_is_never_taken_for_the_whole(place: str, proxy: StoreProxy):
    [file] = fill(place, "x.metadata.json")
    proxy.fail("GET", Fault(cut=True))
    with pytest.raises(OSError), opened_io().new_input(file).open() as stream:
        stream.read()


def test_a_warehouse_keeps_its_own_settings_beside_another_in_its_bucket(
    place: str, proxy: StoreProxy, endpoints: Endpoints
):
    """A doctor that looks at a second warehouse must not send readers of the first one there."""
    [file] = fill(place, "x.metadata.json")
    assert endpoints.s3 is not None
    with StoreProxy(endpoints.s3) as other:
        BOUND.bind(f"s3://harness/{uuid.uuid4().hex[:10]}", other.settings)
        with opened_io().new_input(file).open() as stream:
            assert stream.read() == b"x" * 1000
        assert other.seen == []


class Noted:
    """Digests of what was written."""

    warehouse = None

    def __init__(self) -> None:
        self.found: dict[str, Digest] = {}

    def add(self, path: str, digest: Digest) -> None:
        self.found[path] = digest

    def flush(self) -> None: ...

    def ask(self, paths: Sequence[str]) -> dict[str, Digest]:
        return {path: self.found[path] for path in paths if path in self.found}


def test_a_metadata_file_is_created_by_one_request_and_never_written_over(place: str, proxy: StoreProxy):
    notes = Noted()
    io = CheckedIO(StoreIO(), notes)
    where = f"{place}/metadata/00001-x.metadata.json"
    proxy.fail("CREATE", Fault(lost=True), times=1)  # the client asks again, and finds what it has made
    with io.new_output(where).create() as stream:
        stream.write(b"{1}")
    kinds = [one.kind for one in proxy.seen]
    assert kinds == ["CREATE", "CREATE", "GET"]
    with pytest.raises(FileExistsError, match="another content"), io.new_output(where).create() as stream:
        stream.write(b"{2}")
    seen = read_mark(where)
    assert seen is not None
    assert seen.content == b"{1}"
    with suppress(ZeroDivisionError), io.new_output(f"{place}/half").create() as stream:
        stream.write(b"{")
        raise ZeroDivisionError
    assert read_mark(f"{place}/half") is None
    assert list(notes.found) == [where]
    assert proxy.counts()["LIST"] == 0


REFUSALS = [
    (403, "AccessDenied", "grant the rights"),
    (400, "ExpiredToken", "have expired"),
    (403, "InvalidAccessKeyId", "does not know these credentials"),
    (404, "NoSuchBucket", "there is no such bucket"),
    (400, "AuthorizationHeaderMalformed", "HARNESS_S3_REGION"),
]


@pytest.mark.parametrize(("status", "code", "said"), REFUSALS, ids=[code for _, code, _ in REFUSALS])
@pytest.mark.parametrize("client", ["the SDK lists", "arrow writes", "obstore reads", "obstore deletes"])
def test_what_a_person_has_to_correct_has_a_name_by_every_client(
    place: str, proxy: StoreProxy, client: str, status: int, code: str, said: str
):
    [file] = fill(place, "x")
    for kind in ("HEAD", "GET", "LIST", "PUT", "CREATE", "BULK", "POST"):
        proxy.fail(kind, Fault.named(status, code))
    with pytest.raises(StoreRefused, match=said), reachable("shop.orders", "working"):
        match client:
            case "the SDK lists":
                list(listed(place))
            case "arrow writes":
                system, path = opened(file)
                with system.open_output_stream(path) as stream:
                    stream.write(b"y")
            case "obstore reads":
                read_mark(file)
            case _:
                delete([file])


@pytest.mark.parametrize(("status", "said"), [(403, "grant the rights"), (400, "have expired, or the bucket")])
def test_a_head_that_is_refused_is_named_though_its_answer_has_no_body(
    place: str, proxy: StoreProxy, status: int, said: str
):
    [file] = fill(place, "x")
    proxy.fail("HEAD", Fault(status=status))
    with pytest.raises(StoreRefused, match=said), reachable("shop.orders", "working"):
        system, path = opened(file)
        system.open_input_file(path).size()


@pytest.mark.parametrize("fault", [Fault.named(503, "SlowDown"), Fault.named(500, "InternalError")])
def test_a_store_that_stays_away_is_away_and_refuses_nothing(place: str, proxy: StoreProxy, fault: Fault):
    [file] = fill(place, "x")
    proxy.fail("GET", fault)
    with pytest.raises(LakeAway), reachable("shop.orders", "reading"):
        system, path = opened(file)
        system.open_input_stream(path).read()


def test_a_purge_that_was_cut_off_is_finished_by_the_next_one(make_rig: MakeRig, place: str, proxy: StoreProxy):
    rig = make_rig()
    stores = rig.stores
    fill(place, "shop/a/metadata/1", "shop/a/data/2")
    one = stores.ledger.droppable(rig.name)
    stores.ledger.drop_table(one, purge=[f"{place}/shop/a"])
    proxy.fail("BULK", Fault.named(403, "AccessDenied"))
    with pytest.raises(StoreRefused):
        purge_noted(stores.owner, rig.name)
    assert to_purge(stores.owner, rig.name) == [f"{place}/shop/a"]
    proxy.heal()
    purge_noted(stores.owner, rig.name)
    assert list(listed(place)) == []
    assert to_purge(stores.owner, rig.name) == []
