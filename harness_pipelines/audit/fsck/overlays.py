"""Rules of fsck for recalled rows: they exist, are unchanged, and the lake agrees.

That no row is live in the lake and in Postgres at once (S17), and that both together are what the stream view folds to
(S19), only a read of all of them tells: `harness audit --full`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from harness_pipelines.audit.fsck.rule import Look, Objection, rule
from harness_pipelines.ports.files import MetadataSeen
from harness_pipelines.protocol.lake.overlays import Overlay, named, told
from harness_pipelines.protocol.lake.properties import RECALLED
from harness_pipelines.protocol.shape import view_set_of


@rule("S10", "a table of recalled rows that a version in reach names is there, and nothing has given it up")
def overlays_there(look: Look) -> Iterator[Objection]:
    known = {row.name: row for row in look.books.overlays}
    for one, versions in _named(look):
        where = f"{one.segment}, which version {versions} names"
        row = known.get(one.segment)
        if row is None or not row.stored:
            detail = f"{where}, is not in Postgres: {one.rows:,} rows of the batch view are gone; `harness reconcile"
            yield Objection(one.segment, f"{detail} {look.books.name}` has it made again from the stream view")
        elif row.retired:
            yield Objection(
                one.segment, f"{where}, is given up and will be dropped: {one.rows:,} rows of the batch view"
            )


@rule("S32", "a table of recalled rows holds what its version says")
def overlays_whole(look: Look) -> Iterator[Objection]:
    for one, versions in _named(look):
        found = look.recalled.get(one.segment)
        if found is not None and found != (one.rows, one.digest):
            yield Objection(
                one.segment,
                f"{one.segment} has {found[0]:,} rows with digest {found[1]}, version {versions} says {one.rows:,} "
                f"with {one.digest}",
            )


@rule("S28", "the batch view's snapshot says which rows it lacks: those of the tables that its version names", "lake")
def told_recalled(look: Look) -> Iterator[Objection]:
    seen = look.views.get("batch")
    for version in look.books.retained if seen else ():
        metadata = seen.survey.metadata.get(version.batch.metadata) if seen and version.batch else None
        if not isinstance(metadata, MetadataSeen) or metadata.head is None:
            continue
        says = metadata.head.summary.get(RECALLED) or ""
        if says != told(version.overlays):
            where = f"version {version.version}"
            yield Objection(
                f"recalled rows of {where}",
                f"{where} names {named(version.overlays)}, its snapshot of the batch view {says or 'none'}",
            )


@rule("S17", "rows are recalled of a keyed table with both views only, and none at a time twice")
def recalled_once(look: Look) -> Iterator[Objection]:
    for version in look.books.retained:
        names = [one.segment for one in version.overlays]
        if len(set(names)) < len(names):
            yield Objection(
                f"version {version.version}", f"version {version.version} names {max(names, key=names.count)} twice"
            )
        if names and (not look.books.spec.key or not view_set_of(look.books.spec).merged):
            yield Objection(f"version {version.version}", f"version {version.version} names recalled rows: {names[0]}")


@rule("S9", "what is recalled changes by the moves of otree that made it, and by reverts to what it was")
def overlays_are_moves(look: Look) -> Iterator[Objection]:
    moves, known = {m.move_id: m for m in look.books.moves}, {v.version: v for v in look.books.versions}
    for before, after in pairwise(look.books.versions):
        where = f"version {after.version}"
        if after.revert_of is not None:
            target = known.get(after.revert_of)
            if target is not None and target.overlays != after.overlays:
                detail = f"{where} names {named(after.overlays)}, version {target.version}, which it restores, "
                yield Objection(where, f"{detail}{named(target.overlays)}")
        elif after.version == before.version + 1 and after.overlays != before.overlays:
            move = moves.get(after.move_id or 0)
            made = [one for one in after.overlays if one not in before.overlays]
            if move is None or move.stage != "otree" or any(one.move != move.move_id for one in made):
                detail = f"{where} names {named(after.overlays)}, version {before.version} {named(before.overlays)}"
                yield Objection(where, f"{detail}; its move {after.move_id} is none that made them")


def _named(look: Look) -> Iterator[tuple[Overlay, int]]:
    """Each table of recalled rows that a version in reach names, and the newest such version."""
    newest: dict[str, tuple[Overlay, int]] = {}
    for version in look.books.retained:
        newest |= {one.segment: (one, version.version) for one in version.overlays}
    yield from newest.values()
