"""`harness table`: propose, create, list, show and drop tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.cli.tables.table_init import init_command
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.ledgers.postgres.acts.drop import Dropped, LakeFiles
    from harness_pipelines.spec.table import TableSpec
    from harness_pipelines.stages.table.apply import Changes


class NotAllApplied(HarnessError):
    """Of the specs of a folder some were applied, and others could not be."""

    way_on: ClassVar[str] = "correct the specs that are named, then apply the folder again"


@click.group()
def table() -> None:
    """Propose, create, list, show and drop tables."""


table.add_command(init_command)


@table.command("apply")
@click.argument("file", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Check everything and show what would change; change nothing.")
@json_option
@click.pass_obj
def apply_command(settings: Settings, file: str, dry_run: bool, json_target: str | None) -> None:
    """Create the table that FILE describes, or apply its changed settings. Of a folder every spec in it is applied.

    Checks the topic, then creates the buffer and the Iceberg tables. A second call changes nothing. For a new table or
    new columns it first decodes the 20 newest and 20 oldest records of each partition and reports how many fit.

    \b
    Examples:
      harness table apply orders.yaml --dry-run
      harness table apply orders.yaml
    with orders.yaml:
      table: shop.orders
      topic: orders
      columns:
        order_id: {type: long, required: true}
        amount: decimal(12,2)
        ordered_at: timestamptz
    """
    if Path(file).is_dir():
        with opened(settings) as harness:
            every = [_applied_or_not(harness, one, dry_run=dry_run) for one in _specs_in(Path(file))]
        emit({"tables": every}, json_target, lambda: _told_all(every))
        if failed := sum(one["result"] == "failed" for one in every):
            raise NotAllApplied(f"{failed} of {quantity(len(every), 'spec')} could not be applied, see above")
        return
    from harness_pipelines.spec.load import load_spec

    spec = load_spec(file)  # what is wrong in it is said before anything is opened
    with opened(settings) as harness:
        shown = _applied(harness, file, spec, dry_run=dry_run)
    emit(shown, json_target, lambda: _told(shown))


def _applied(harness: Harness, file: str, spec: TableSpec, *, dry_run: bool) -> dict[str, Any]:
    from harness_pipelines.spec.load import located
    from harness_pipelines.stages.table.apply import settings_changed

    with located(file):
        before = next((one.spec for one in harness.survey([spec.table])[0]), None)
        seen = {} if before == spec else _sample(harness, spec)
        if dry_run:
            return {**_planned(harness, spec), **seen}
        made = harness.apply(spec)
        what = "created" if before is None else "unchanged" if before == made.spec else "changed"
        [summary] = _summaries(harness, [made])
        changes = {} if before is None else settings_changed(before, made.spec)
        return {**summary, "result": what, "changes": _change_rows(changes), **seen}


def _planned(harness: Harness, spec: TableSpec) -> dict[str, Any]:
    from harness_pipelines.stages.table.apply import plan_apply

    plan = plan_apply(harness.stores, spec)
    result = {"create": "would create", "change": "would change", "nothing": "would not change"}[plan.result]
    return {
        "table": spec.table,
        "topic": spec.topic,
        "buffer": spec.buffer_kind,
        "partitions": list(plan.partitions),
        "result": result,
        "changes": _change_rows(plan.changes),
    }


def _change_rows(changes: Changes) -> list[dict[str, Any]]:
    return [{"setting": word, "old": old, "new": new} for word, (old, new) in changes.items()]


def _specs_in(folder: Path) -> list[Path]:
    """Raises: UsageError."""
    found = sorted(one for one in folder.iterdir() if one.suffix in {".yaml", ".yml", ".json"} and one.is_file())
    if not found:
        raise UsageError(f"{folder} has no specs: no file ends with .yaml, .yml or .json")
    return found


def _applied_or_not(harness: Harness, file: Path, *, dry_run: bool) -> dict[str, Any]:
    """A spec that is wrong does not hold up the others; what concerns all of them ends the command."""
    from harness_pipelines.spec.load import load_spec

    try:
        return {"file": str(file), **_applied(harness, str(file), load_spec(file), dry_run=dry_run)}
    except TryAgain:
        raise
    except HarnessError as error:
        return {"file": str(file), "result": "failed", "why": str(error)}


def _told_all(every: Sequence[dict[str, Any]]) -> None:
    for one in every:
        if one["result"] == "failed":
            note(f"harness: {one['why']}")
            continue
        sample = f"; {one['sample_summary']}" if "sample_summary" in one else ""
        partitions = quantity(len(one["partitions"]), "partition")
        click.echo(f"{one['result']} {one['table']}: topic {one['topic']}, {partitions}{sample}")
        _tell_changes(one)


def _sample(harness: Harness, spec: TableSpec) -> dict[str, Any]:
    """Report how a sample of the topic fits.

    A log that moves meanwhile, or is damaged in places, does not stop the apply. A server that is away or refuses the
    login does: nothing was created yet.
    """
    from harness_pipelines.ports.errors import LogTruncated, RecordsLost, RecordUnreadable
    from harness_pipelines.stages.table.sampled import sample

    try:
        found = sample(harness.stores, spec)
    except (RecordsLost, LogTruncated, RecordUnreadable) as error:
        return {"sample": None, "sample_summary": f"no sample was decoded: {error}"}
    return {"sample": found.to_json(), "sample_summary": found.summary()}


def _told(shown: dict[str, Any]) -> None:
    name = shown["table"]
    click.echo(f"{shown['result']} {name}: topic {shown['topic']}, {quantity(len(shown['partitions']), 'partition')}")
    _tell_changes(shown)
    if "sample_summary" in shown:
        click.echo(f"a sample of its records: {shown['sample_summary']}")
    if shown.get("sample") and shown["sample"]["records"] and not shown["sample"]["fit"]:
        note("harness: no record of the sample fits: correct the spec and apply it again; the decoding "
             "may change until a record has become a row")  # fmt: skip
    if shown["result"] == "created":
        click.echo(f"next: harness run {name} --until-idle; harness read {name}")


def _tell_changes(shown: dict[str, Any]) -> None:
    for change in shown["changes"]:
        old, new = ("not set" if change[at] is None else change[at] for at in ("old", "new"))
        click.echo(f"  {change['setting']}: {old} -> {new}")


def _summaries(harness: Harness, tables: Sequence[Table]) -> list[dict[str, Any]]:
    partitions = harness.stores.overview.all_partitions([one.row for one in tables])
    return [_summary(one, partitions[one.row.table_id]) for one in tables]


def _summary(one: Table, partitions: list[int]) -> dict[str, Any]:
    return {
        "table": one.name,
        "topic": one.spec.topic,
        "buffer": one.spec.buffer_kind,
        "partitions": partitions,
        "stopped": one.row.stopped,
    }


@table.command("list")
@json_option
@click.pass_obj
def list_command(settings: Settings, json_target: str | None) -> None:
    """List the tables.

    \b
    Example:
      harness table list --json | jq -r '.tables[].table'
    """
    with opened(settings) as harness:
        tables, sick = harness.survey()
        found = _summaries(harness, tables)

    def human() -> None:
        for broken in sick:
            click.echo(f"{broken.name}  cannot be read: {broken.why}")
        for one in found:
            stopped = f"  stopped: {one['stopped']}" if one["stopped"] else ""
            click.echo(f"{one['table']}  topic {one['topic']}, {len(one['partitions'])} partitions{stopped}")
        if not found and not sick:
            note("no table yet: `harness table apply FILE` creates one")

    told = [{"table": one.name, "why": one.why} for one in sick]
    emit({"tables": found, "sick": told}, json_target, human)


@table.command("show")
@click.argument("name", metavar="TABLE")
@json_option
@click.pass_obj
def show_command(settings: Settings, name: str, json_target: str | None) -> None:
    """Show a table's spec with every default, and the rows and bytes of its Iceberg tables.

    \b
    Example:
      harness table show shop.orders > orders.yaml    # `table apply` accepts this file
    """
    from harness_pipelines.ledgers.postgres.views.quarantine import kept
    from harness_pipelines.protocol.claims import Stage
    from harness_pipelines.spec.load import dump_spec, written_spec

    with opened(settings) as harness:
        one = harness.table(name)
        words = dump_spec(one.spec)
        source = {"cluster_id": one.row.identity.cluster_id, "topic_id": one.row.identity.topic_id}
        view = harness.stores.tables.pointer(one.row, one.row.effects[Stage.TIER].view)
        [summary] = _summaries(harness, [one])
        shown = {**summary, **source, "schema_version": one.row.schema_version, "metadata": view, "spec": words}
        shown |= _views(one)
        shown["quarantine"] = kept(harness.stores.readers, one.row)
    emit(shown, json_target, lambda: _show_spec(shown, written_spec(one.spec)))


@table.command("schema")
@click.pass_obj
def schema_command(_: Settings) -> None:
    """Print the JSON Schema of a spec, by which editors complete settings and mark what is wrong.

    A spec names it in its first line: # yaml-language-server: $schema=harness-table.json

    \b
    Example:
      harness table schema > harness-table.json
    """
    import json

    from harness_pipelines.spec.table import TableSpec

    click.echo(json.dumps(TableSpec.model_json_schema(), indent=2, ensure_ascii=False))


def _views(one: Table) -> dict[str, Any]:
    """Describe the views of the head; if the warehouse does not answer, report the reason instead."""
    from harness_pipelines.read.report.storage import costs

    head = one.harness.stores.tables.head(one.row)
    recalled = {"recalled": [overlay.to_json() for overlay in head.overlays]}
    try:
        found = {cost.view: cost for cost in costs(one.row, head, one.harness.stores.lake_reads)}
    except HarnessError as away:
        return {"views": None, "views_trouble": str(away), **recalled}
    told: dict[str, Any] = {"views": {name: cost.to_json() for name, cost in found.items()}, **recalled}
    if len(found) == 2 and found["stream"].bytes:
        told["batch_to_stream"] = round(found["batch"].bytes / found["stream"].bytes, 3)
    return told


def _show_spec(shown: dict[str, Any], words: dict[str, Any]) -> None:
    import yaml

    from harness_pipelines.show.bars import size

    click.echo(yaml.safe_dump(words, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)
    click.echo(f"# topic id {shown['topic_id']} of cluster {shown['cluster_id']}, schema {shown['schema_version']}")
    click.echo(f"# Iceberg metadata {shown['metadata']}")
    if shown["views"] is None:
        note(f"harness: the lake cannot be read: {shown['views_trouble']}")
        return
    for name, view in shown["views"].items():
        reached = ", ".join(f"{partition}: {high:,}" for partition, high in view["reached"].items())
        click.echo(
            f"# {name} view {view['name']}: {view['rows']:,} rows in {view['files']:,} files, {size(view['bytes'])}, "
            f"offsets below {reached}"
        )
    for overlay in shown["recalled"]:
        kept = f"{overlay['rows']:,} of its rows are recalled to Postgres, {size(overlay['bytes'])}"
        click.echo(f"# batch view: {kept} in {overlay['segment']}")
    aside = shown["quarantine"]
    if aside["in_lake"]:
        rest = f"those of {aside['in_postgres']:,} are in Postgres, {size(aside['bytes'])}"
        click.echo(f"# quarantine {aside['name']}: the bytes of {aside['in_lake']:,} records; {rest}")
    if "batch_to_stream" in shown:
        click.echo(f"# the batch view takes {shown['batch_to_stream']:.2f} times the bytes of the stream view")


@table.command("drop")
@click.argument("name", metavar="TABLE")
@wish_options("List what would be removed; change nothing.")
@click.option("--purge", is_flag=True, help="Also delete the Iceberg files.")
@json_option
@click.pass_obj
def drop_command(
    settings: Settings, name: str, *, dry_run: bool, yes: bool, purge: bool, json_target: str | None
) -> None:
    """Drop a table for good: its buffer, ledger rows and catalog rows. The topic and the Iceberg files stay.

    Refused while a worker holds a claim on the table.

    \b
    Examples:
      harness table drop shop.orders --dry-run
      harness table drop shop.orders --yes --purge
    """
    check_wish(dry_run=dry_run, yes=yes)
    with opened(settings) as harness:
        gone, files, left = _drop(harness, name, really=yes, purge=purge)
    shown = {
        **gone.to_json(),
        "files": [{"location": f.location, "count": f.count, "bytes": f.bytes} for f in files],
        "purged": yes and purge and not left,
        "left": left,
        "dropped": yes,
    }
    emit(shown, json_target, lambda: _show_drop(gone, files, left, done=yes, purge=purge))
    if not yes and not dry_run:
        raise not_asked("drop the table for good")


def _drop(harness: Harness, name: str, *, really: bool, purge: bool) -> tuple[Dropped, list[LakeFiles], list[str]]:
    """What goes, its files, and folders that a server may write to yet."""
    from harness_pipelines.ledgers.postgres.acts import drop
    from harness_pipelines.ports.ledger import TableUnknown

    stores = harness.stores
    try:
        one = stores.ledger.droppable(name)
    except TableUnknown:
        folders = drop.to_purge(stores.owner, name) if purge else []
        if not folders:
            raise
        return (drop.Dropped.of_purge(name), *_purge(harness, name, folders, really=really))
    seen = stores.ledger.drop_table(one, dry_run=True)
    folders = [_location(harness, name, place, purge=purge) for place in seen.metadata]
    files = [drop.files_below(folder) for folder in (*folders, *seen.fresh)]
    if not really:
        return seen, files, []
    if purge:
        stores.ownership.confirm()  # another ledger may have these files
    gone = stores.ledger.drop_table(one, purge=[found.location for found in files] if purge else [])
    return gone, files, drop.purge_noted(stores.owner, name) if purge else []


def _purge(harness: Harness, name: str, folders: Sequence[str], *, really: bool) -> tuple[list[LakeFiles], list[str]]:
    """Continue with the files of a table that was dropped before."""
    from harness_pipelines.ledgers.postgres.acts import drop

    files = [drop.files_below(folder) for folder in folders]
    if not really:
        return files, []
    harness.stores.ownership.confirm()  # another ledger may have these files
    return files, drop.purge_noted(harness.stores.owner, name)


def _location(harness: Harness, name: str, metadata: str, *, purge: bool) -> str:
    """Where the files of the view are that *metadata* is of; what is only shown need not be proved by it."""
    from harness_pipelines.ledgers.postgres.acts import drop
    from harness_pipelines.ports.errors import MetadataMissing

    namespace, _, bare = name.partition(".")
    try:
        return harness.stores.catalog.at((namespace, bare), metadata).location()
    except MetadataMissing:
        if purge:
            raise
        return drop.location_of(metadata)


def _show_drop(gone: Dropped, files: list[LakeFiles], left: Sequence[str], *, done: bool, purge: bool) -> None:
    click.echo(f"{'dropped' if done else 'would drop'} {gone.table}")
    for segment in gone.segments:
        click.echo(f"  buffer   {segment.name} ({segment.state}, {segment.bytes:,} bytes)")
    for view in gone.views:
        click.echo(f"  catalog  {view}")
    refused = quantity(gone.quarantined, "quarantined record")
    click.echo(f"  ledger   {quantity(gone.versions, 'version')}, {quantity(gone.moves, 'move')}, {refused}")
    if gone.readers:
        click.echo(f"  readers  {gone.readers} running reads will fail")
    if gone.cuts:
        click.echo(f"  cuts     {quantity(gone.cuts, 'cut')} that servers show; queries over them will fail")
    for found in files:
        fate = "files" if purge else "files stay:"
        click.echo(f"  lake     {found.count} {fate} {found.location} ({found.bytes:,} bytes)")
    for folder in left:
        click.echo(f"  left     a server may write to {folder} yet: run the same command again in five minutes")
