"""Rules of fsck for foreign catalogs: what one shows is what the ledger noted.

That the files of what one shows are there is asked together with those of all other versions in reach (S10).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness_pipelines.audit.fsck.rule import Look, Objection, rule
from harness_pipelines.protocol.lake.mirrors import ForeignInMirror, MirrorNameTaken, judge, went_back


@rule("S38", "a foreign catalog shows a published version, one that the ledger noted there", "mirrors")
def mirrors_show(look: Look) -> Iterator[Objection]:
    """A table that is missing there, or of an older version, is a hint: the next round of a worker brings it."""
    for one in look.mirrors or ():
        subject = f"{one.view} view in catalog {one.catalog}"
        where, noted = f"the {subject}", one.noted.version
        if one.seen is None:
            text = f"{where}: it is not there, the ledger noted version {noted}; a worker registers it again"
            yield Objection(subject, text, hint=True)
            continue
        try:
            judge(where, one.seen, one.known, uuids=one.noted.uuids.values(), snapshot=0, version=noted or 0)
        except (ForeignInMirror, MirrorNameTaken) as error:
            yield Objection(subject, str(error))
            continue
        shown = one.seen.version
        if shown is None or shown in one.holds:
            continue
        if went_back(one.seen, noted):
            text = f"{where}: it went back to version {shown}, the ledger noted {noted}; a worker brings it again"
            yield Objection(subject, text, hint=True)
        else:
            yield Objection(
                subject,
                f"{where}: it shows version {shown}, and the ledger noted none but {noted}: expire does not keep its "
                "files for it; run a worker with the stage `mirror`, which notes what it finds",
            )
