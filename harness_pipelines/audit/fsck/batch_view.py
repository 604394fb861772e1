"""Rules of fsck for the batch view: it has the rows of the stream view below batch_hi, and a valid tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from harness_pipelines.audit.fsck.ledger import seams
from harness_pipelines.audit.fsck.rule import Look, Objection, by_partition, rule, spelled
from harness_pipelines.layout.tree import RegionTree, TreeBroken
from harness_pipelines.ports.files import MetadataSeen
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.protocol.lake.files import rows_below
from harness_pipelines.protocol.lake.properties import BATCH_HI, vector_of
from harness_pipelines.protocol.shape import view_set_of


@rule("S19", "the batch view has as many rows as the stream view below batch_hi", "lake")
def same_rows(look: Look) -> Iterator[Objection]:
    """Counts alone, from metadata; contents are the audit's. Of a keyed table it has some of them: the newest puts."""
    if look.head is None or not {"stream", "batch"} <= look.views.keys():
        return
    stream, batch = look.views["stream"], look.views["batch"]
    if not (stream.is_known and batch.is_known):
        return
    runs: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for file in by_partition(stream.live_files):
        if file.partition is not None and file.low is not None and file.high is not None:
            runs[file.partition].append((file.rows, file.low, file.high))
    counts = [rows_below(runs[p], cut.batch_hi) for p, cut in look.head.bounds.items()]
    least, most = sum(low for low, _ in counts), sum(high for _, high in counts)
    found = batch.rows + sum(one.rows for one in look.head.overlays)
    least = 0 if look.books.spec.key else least
    if not least <= found <= most:
        expected = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield Objection(
            "rows of the batch view",
            f"{batch.title} has {found:,} rows, the stream view has {expected} below batch_hi of version "
            f"{look.head.version}; `harness audit {look.books.name} --full` names them",
        )


@rule("S31", "with `views: batch` the batch view has the rows that tier moves brought", "lake")
def rows_of_moves(look: Look) -> Iterator[Objection]:
    """All moves together: a file of it mixes their rows."""
    if not view_set_of(look.books.spec).mixed or "batch" not in look.views or not look.views["batch"].is_known:
        return
    view, brought = look.views["batch"], sum(move.rows or 0 for move in look.tier_moves)
    brought += sum(one.rows for one in look.books.corrected)
    found = view.rows
    if found != brought:
        detail = f"{view.title} has {found:,} rows, tier moves brought {brought:,}"
        yield Objection("rows of the batch view", f"{detail}; `harness audit {look.books.name}` names them")


@rule("S16", "the batch view of a keyed table holds puts alone: a deleted key has no row", "lake")
def puts_alone(look: Look) -> Iterator[Objection]:
    """As far as the bounds of its files tell."""
    if not look.books.spec.key or "batch" not in look.views:
        return
    for file in look.views["batch"].data_files:
        if file.operations not in (None, (PUT, PUT)):
            first, last = file.operations or ("", "")
            yield Objection(file.path, f"{file.path} holds operations {first} to {last}, expected {PUT} alone")


@rule("S37", "no live file of the batch head holds an offset at or above the largest batch_hi", "lake")
def files_below_batch_hi(look: Look) -> Iterator[Objection]:
    """A file mixes partitions, and its bounds are those of all of them."""
    if look.head is None or "batch" not in look.views:
        return
    highest = max((cut.batch_hi for cut in look.head.bounds.values()), default=0)
    lowest = min((cut.start for cut in look.head.bounds.values()), default=0)
    for file in look.views["batch"].data_files:
        if file.low is None or file.high is None:
            yield Objection(file.path, f"{file.path} has no bounds of its offsets: not of the harness")
        elif not lowest <= file.low <= file.high < highest:
            yield Objection(
                file.path,
                f"{file.path} holds offsets {file.low}..{file.high}, the batch view has [{lowest}, {highest})",
            )


@rule("S28", "the batch view's snapshot says how far it reaches: to batch_hi of its version", "lake")
def told_batch_hi(look: Look) -> Iterator[Objection]:
    """An older version may pin a view that reaches further than it says, never one that holds less."""
    seen = look.views.get("batch")
    for version in look.books.retained if seen else ():
        metadata = seen.survey.metadata.get(version.batch.metadata) if seen and version.batch else None
        if not isinstance(metadata, MetadataSeen) or metadata.head is None:
            continue
        told = vector_of(metadata.head.summary.get(BATCH_HI))
        for partition, cut in version.bounds.items():
            reached = told.get(partition, cut.start)
            if reached < cut.batch_hi or (version is look.head and reached != cut.batch_hi):
                where = f"version {version.version}, partition {partition}"
                yield Objection(
                    where, f"{where}: batch_hi is {cut.batch_hi}, its snapshot of the batch view says {reached}"
                )


@rule("S6", "otree moves touch, up to batch_hi, without gap or overlap")
def merges_tile(look: Look) -> Iterator[Objection]:
    """From the first version on, or from the last one that reconcile took over. With `views: batch` tier's do."""
    first = look.merged_from
    if first is None or view_set_of(look.books.spec).mixed:
        return
    starts = {p: row.lake_start for p, row in look.books.positions.items() if row.lake_start is not None}
    starts |= {p: cut.batch_hi for p, cut in first.bounds.items()}
    ends = {p: row.batch_hi for p, row in look.books.positions.items() if row.batch_hi is not None}
    later = {v.move_id for v in look.books.versions if v.version > first.version}
    # No checkpoint reaches over what reconcile took over.
    later |= {one.move_id for one in look.books.checkpoints if one.first_move > (first.move_id or 0)}
    yield from seams("otree", [m for m in look.otree_moves if m.move_id in later], starts, ends)


@rule("S8", "at most one open move changes the batch view, whatever its shard")
def one_open_merge(look: Look) -> Iterator[Objection]:
    opened = [m for m in look.books.moves if m.stage == "otree" and m.state == "PLANNED"]
    if len({m.shard for m in opened}) > 1:
        yield Objection("otree", f"{len(opened)} open moves of otree: {spelled(m.move_id for m in opened)}")


@rule("S10", "the region tree that a retained version names is there, and is what its digest says")
def layouts_there(look: Look) -> Iterator[Objection]:
    known = {row.version: row for row in look.books.layouts}
    retained = [v for v in look.books.versions if v.version >= look.books.retained_from]
    wanted = Counter(v.layout for v in retained if v.layout is not None and v.layout not in known)
    for layout in sorted(wanted):
        named = spelled(v.version for v in retained if v.layout == layout)
        yield Objection(f"layout {layout}", f"no row {layout} in harness.layouts; version {named} names it")
    for row in known.values():
        where = f"layout {row.version}"
        try:
            tree = RegionTree.from_json(row.tree)
        except TreeBroken as broken:
            yield Objection(where, f"{where}: {broken}")
            continue
        if tree.digest != row.digest:
            yield Objection(where, f"{where}: the tree has digest {tree.digest[:12]}, the row says {row.digest[:12]}")
        if strange := sorted(set(row.clustered) - set(tree.paths())):
            yield Objection(
                where, f"{where}: {len(strange)} clustered regions, such as {strange[0]!r}, are not in its tree"
            )
