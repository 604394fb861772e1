"""The warehouse: what the harness asks of a store. `harness init` runs the same checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from harness_pipelines.app.doctor.check import Check, Finding, Notes, Verdict
from harness_pipelines.drivers.object_stores.probe import StoreProbe, probing
from harness_pipelines.drivers.object_stores.troubles import StoreRefused, refusal, said
from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings

SKEW_S_WARN = 60.0  #: S3 refuses requests from 15 min on
AWAY = "is HARNESS_WAREHOUSE right, and does the store (HARNESS_S3_ENDPOINT) answer from this machine?"


def warehouse(settings: Settings) -> list[Check]:
    """The one check of the store that the warehouse is on."""
    return [Check(system="warehouse", name="store", look=partial(look, settings=settings), deadline_s=20.0)]


def look(notes: Notes, *, settings: Settings) -> Iterator[Finding]:
    """Ask the store everything that stages will ask. A refused request skips the checks that depend on it."""
    place = settings.warehouse
    if place is None:
        way_on = "set HARNESS_WAREHOUSE, or `harness services up`"
        yield notes.skipped("store", "HARNESS_WAREHOUSE is not set, and no embedded services run", way_on)
        return
    with probing(place) as probe:
        if not probe.is_there():  # made now, it would belong to the user who runs this
            yield notes.skipped(
                "store", f"{place} is not there yet", "the first table makes it; workers must be able to"
            )
            return
        for name, ask, found in (
            ("write", probe.write, f"{place} takes files"),
            ("create once", probe.refuses_conditions, "a second creation and a wrong tag are refused"),
            ("replace", probe.replaces, "by a process that has read what is replaced"),
            ("read", probe.read, "the bytes that were written"),
            ("list", probe.lists, "has each file under its own name"),
            ("delete", probe.deletes, "by one call, and no listing has them then"),
        ):
            finding = _asked(notes, name, ask, found, place=place)
            yield finding
            if finding.verdict is not Verdict.OK:
                return
        if not probe.is_local:
            yield from _of_store(notes, probe, place)


def _of_store(notes: Notes, probe: StoreProbe, place: str) -> Iterator[Finding]:
    """What only object stores have. Raises: HarnessError."""
    try:
        ahead_s, versions, uploads = probe.clock_ahead_s(), probe.keeps_deleted(), probe.cut_off_uploads()
        set_to, is_in = probe.regions()
    except OSError as error:
        yield _away(notes, "store", error, place=place)
        return
    if ahead_s is not None and abs(ahead_s) > SKEW_S_WARN:
        way = "ahead of" if ahead_s > 0 else "behind"
        way_on = "let this machine follow NTP: S3 refuses requests whose time is off by 15 min"
        yield notes.warn("clock", f"the store is {abs(ahead_s):.0f} s {way} this machine", way_on)
    else:
        yield notes.ok("clock", f"the store's is within {SKEW_S_WARN:.0f} s of this machine's")
    may_not = "these credentials may not ask"
    if versions is None:
        yield notes.skipped("versioning", may_not, "allow s3:GetBucketVersioning, or look at the bucket")
    elif versions:
        way_on = "add a lifecycle rule that ends noncurrent versions, or leave versioning off (object-stores.md)"
        yield notes.warn("versioning", "is on: what expire deletes is kept, and billed", way_on)
    else:
        yield notes.ok("versioning", "is off: what is deleted frees its space")
    if uploads is None:
        yield notes.skipped("cut-off uploads", may_not, "allow s3:ListBucketMultipartUploads")
    elif uploads:
        way_on = "let a lifecycle rule abort incomplete multipart uploads; expire aborts those of its tables"
        yield notes.warn(
            "cut-off uploads", f"{uploads} began days ago: no listing shows them, and they are billed", way_on
        )
    else:
        yield notes.ok("cut-off uploads", "there are none")
    if is_in is not None and set_to is not None and is_in != set_to:
        yield notes.fail("region", f"HARNESS_S3_REGION is {set_to}, the bucket is in {is_in}", f"set it to {is_in}")
    elif is_in is not None:
        yield notes.ok("region", is_in)


def _asked(notes: Notes, name: str, ask: Callable[[], None], found: str, *, place: str) -> Finding:
    try:
        ask()
    except HarnessError as error:
        return notes.raised(name, error)
    except OSError as error:
        return _away(notes, name, error, place=place)
    return notes.ok(name, found)


def _away(notes: Notes, name: str, error: OSError, *, place: str) -> Finding:
    """An error of Arrow's client, which knows no names."""
    if (way_on := refusal(str(error))) is not None:
        return notes.raised(name, StoreRefused(f"{place}: {way_on} ({error})"))
    return notes.fail(name, f"{place}: {said(error)}", AWAY)
