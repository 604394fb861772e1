"""A listing is whole or an error: what a gateway makes of its pages never looks like files that are gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import obstore
import pytest

from harness_pipelines.drivers import files
from harness_pipelines.drivers.object_stores.bucket import abort_uploads, keeps_deleted
from harness_pipelines.drivers.object_stores.clients import objects
from harness_pipelines.drivers.object_stores.troubles import StoreRefused
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
from harness_pipelines.lakes.iceberg.inspect.history import IcebergHistories, IcebergHistory, metadata_files
from harness_pipelines.ledgers.postgres.acts.drop import purge
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.lake import reachable
from harness_pipelines_tests.store_proxy import Fault, StoreProxy

NAMES = [f"{number:05}-{number}.metadata.json" for number in range(7)]
PER_PAGE = 3


@pytest.fixture(autouse=True)
def _short_pages(started: tuple[StoreProxy, str]) -> None:
    started[0].page_keys = PER_PAGE


@pytest.fixture
def view(started: tuple[StoreProxy, str]) -> str:
    """The folder of a view, with metadata files on three pages."""
    place = f"{started[1]}/{uuid4().hex[:8]}/orders-1f2e3d4c"
    store, key = objects(place)
    for name in NAMES:
        obstore.put(store, f"{key}/metadata/{name}", b"{}")
    return place


def without(tag: str) -> Callable[[bytes], bytes]:
    return lambda body: re.sub(rf"<{tag}>.*?</{tag}>".encode(), b"", body)


def leads_back() -> Callable[[bytes], bytes]:
    """The last page says that it is not the last one, and goes on with the token that it was asked for by."""
    seen: list[bytes] = []

    def changed(body: bytes) -> bytes:
        if found := re.findall(rb"<NextContinuationToken>(.*?)<", body):
            seen[:] = found
            return body
        body, end = body.replace(b"<IsTruncated>false<", b"<IsTruncated>true<"), b"</ListBucketResult>"
        return body.replace(end, b"<NextContinuationToken>%s</NextContinuationToken>%s" % (seen[0], end))

    return changed


def of_another(body: bytes) -> bytes:
    return re.sub(rb"<Key>[^<]*/", b"<Key>other/", body)


#: What a gateway makes of a page behind the first.
PAGES = {
    "nothing": Fault(changed=lambda _: b""),
    "half of it": Fault(changed=lambda body: body[: len(body) // 2]),
    "half of what it promised": Fault(cut=True),
    "a page in XML": Fault(changed=lambda _: b"<html><body><p>Please sign in</p></body></html>"),
    "a page": Fault(changed=lambda _: b"<!DOCTYPE html><html><br>Please sign in</html>"),
    "no way on": Fault(changed=without("NextContinuationToken")),
    "the page before": Fault(changed=leads_back()),
    "no word of its end": Fault(changed=without("IsTruncated")),
    "keys of another folder": Fault(changed=of_another),
}


def history(view: str) -> IcebergHistory:
    return IcebergHistory(StagingCatalog("harness", warehouse=view), ("shop", "orders"), view)


def read_names(view: str) -> object:
    """The guard's look; that these files hold nothing is not its matter."""
    return history(view).named_moves(at_least=0, read=dict.fromkeys(paths_of(view), ()))


def paths_of(view: str) -> list[str]:
    return [f"{view}/metadata/{name}" for name in NAMES]


def histories(view: str) -> IcebergHistories:
    warehouse = view.rpartition("/")[0].rpartition("/")[0]
    return IcebergHistories(StagingCatalog("harness", warehouse=warehouse), warehouse=warehouse)


LOOKS: dict[str, Callable[[str], object]] = {
    "all files": lambda view: sorted(file.path for file in files.listed(view)),
    "the guard": read_names,
    "a purge": purge,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("page", PAGES)
def test_a_listing_whose_second_page_is_spoiled_is_no_listing(proxy: StoreProxy, view: str, page: str, look: str):
    proxy.fail_later_pages(PAGES[page])

    with pytest.raises(LakeAway) as caught, reachable("shop.orders", "looking"):
        LOOKS[look](view)

    assert view in str(caught.value)
    proxy.heal()
    assert len(list(files.listed(view))) == len(NAMES), "nothing was deleted"


@pytest.mark.parametrize(
    "fault", [Fault.named(301, "PermanentRedirect"), Fault(status=301)], ids=["a store", "a gateway"]
)
def test_a_listing_that_is_redirected_with_all_other_requests_has_an_end(proxy: StoreProxy, view: str, fault: Fault):
    proxy.fail(("LIST", "HEAD"), fault)
    with pytest.raises((StoreRefused, LakeAway)) as caught, reachable("shop.orders", "looking"):
        list(files.listed(view))
    assert ("HARNESS_S3_REGION" if fault.body else "(301)") in str(caught.value)


def test_pages_are_put_together(proxy: StoreProxy, view: str):
    proxy.forget()
    assert sorted(file.path for file in files.listed(view)) == paths_of(view)
    assert proxy.counts() == {"LIST": 3}
    assert [file.path for file in metadata_files(view)] == paths_of(view)[::-1]
    assert histories(view).present([*paths_of(view), f"{view}/metadata/gone"]) == set(paths_of(view))


def test_folders_and_files_that_lie_directly_in_a_folder_are_told_apart(view: str):
    place = view.rpartition("/")[0]
    store, key = objects(place)
    for name in ("orders-aaaaaaaa/data/x", "orders-bbbbbbbb/x", "a file"):
        obstore.put(store, f"{key}/{name}", b"")

    found = files.directly_in(place)

    assert found.files == ("a file",)
    assert set(found.folders) == {"orders-1f2e3d4c", "orders-aaaaaaaa", "orders-bbbbbbbb"}
    assert histories(view).folders(namespace=place.rpartition("/")[2], view="orders")[0] == view
    assert files.directly_in(f"{place}/nothing") == files.Folder(files=(), folders=())


@pytest.mark.parametrize("page", ["a page", "half of it"])
@pytest.mark.parametrize("asked", ["UPLOADS", "VERSIONING"])
def test_what_else_is_asked_of_a_bucket_is_away_where_a_page_answers(
    proxy: StoreProxy, view: str, asked: str, page: str
):
    proxy.fail(asked, PAGES[page])

    with pytest.raises(LakeAway), reachable("shop.orders", "looking"):
        abort_uploads(view, before=datetime.now(UTC)) if asked == "UPLOADS" else keeps_deleted(view)
