"""Replays that a person starts in Dagster: what is published is shown with its move, what has to wait tries again."""

from typing import Any

import pytest
import yaml
from dagster import DagsterInstance, ExecuteInProcessResult

from harness_pipelines.defs import replays
from harness_pipelines.defs.build import build
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.stages.replay.quarantine import replay
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import TableRig

ODD = b'{"id":1000,"n":7,"s":"odd","more":1}'  #: refused where unknown fields are

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def odd(make_rig: MakeRig) -> TableRig:
    """A table with 20 rows, and a record that its spec does not take at offset 10 of partition 0."""
    rig = make_rig(views="stream", unknown_fields="quarantine")
    rig.produce(10)
    rig.kafka.produce(rig.topic, 0, [ODD])
    rig.ingest()
    return rig


def run(rig: TableRig, instance: DagsterInstance, name: str, **config: Any) -> ExecuteInProcessResult:
    job = build([rig.table.spec]).resolve_job_def(f"harness_{name}")
    [step] = job.nodes
    told = {"ops": {step.name: {"config": {"table": rig.name, **config}}}}
    return job.execute_in_process(run_config=told, instance=instance, raise_on_error=False)


def shown(rig: TableRig, result: ExecuteInProcessResult) -> dict[str, Any]:
    """Metadata of the only materialization, which is the table's."""
    [event] = result.get_asset_materialization_events()
    assert event.asset_key is not None and event.asset_key.path == rig.name.split(".")
    return {name: value.value for name, value in event.materialization.metadata.items()}


def counted(result: ExecuteInProcessResult) -> dict[str, Any]:
    [event] = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def decoder(rig: TableRig, **words: Any) -> str:
    return yaml.safe_dump(dump_spec(rig.table.spec) | words)


def test_a_run_puts_back_what_was_chosen_and_names_the_committed_move(odd: TableRig, instance: DagsterInstance) -> None:
    odd.tier()
    lenient = decoder(odd, unknown_fields="ignore")
    before = odd.stores.tables.head(odd.table.row).version

    tried = run(odd, instance, "replay_quarantine", decoder=lenient)
    assert tried.success and not tried.get_asset_materialization_events(), "without more words it is a dry run"
    assert (counted(tried)["dry_run"], counted(tried)["replayed"]) == (True, 1)
    other = run(odd, instance, "replay_quarantine", decoder=lenient, dry_run=False, reasons=["malformed"])
    assert counted(other)["records"] == 0
    assert odd.stores.tables.head(odd.table.row).version == before

    done = run(odd, instance, "replay_quarantine", decoder=lenient, dry_run=False, detail="`more`", partition=0)
    head = odd.stores.tables.head(odd.table.row)
    assert (shown(odd, done)["move"], shown(odd, done)["version"]) == (head.move_id, head.version)
    assert shown(odd, done)["replayed"] == 1
    [move] = [m for m in odd.stores.ledger.moves(odd.table.row) if m["stage"] == "replay" and m["state"] == "COMMITTED"]
    assert (move["move_id"], move["run_id"]) == (head.move_id, done.run_id)
    stored = instance.get_run_by_id(done.run_id)
    assert stored is not None and stored.tags[TABLE_TAG] == odd.name and stored.tags[STAGE_TAG] == "replay"


def test_a_range_is_replaced_and_what_cannot_be_is_refused_by_name(odd: TableRig, instance: DagsterInstance) -> None:
    odd.tier()
    strict = decoder(odd, contract={"columns": {"id": {"lt": 0}}})
    part = {"partition": 1, "from": 2, "to": 5, "decoder": strict}

    tried = run(odd, instance, "replay_range", **part)
    assert counted(tried)["removed"] == 3 and not tried.get_asset_materialization_events()
    done = run(odd, instance, "replay_range", **part, dry_run=False)
    head = odd.stores.tables.head(odd.table.row)
    assert (shown(odd, done)["move"], shown(odd, done)["version"]) == (head.move_id, head.version)
    assert odd.table.read().num_rows == 17

    refused = run(odd, instance, "replay_range", **{**part, "to": 99})
    assert not refused.success and "--until-idle" in failure(refused)
    assert "is not a time" in failure(run(odd, instance, "replay_quarantine", since="noon"))


def failure(result: ExecuteInProcessResult) -> str:
    [event] = [e for e in result.all_events if e.is_step_failure]
    return str(event.step_failure_data.error)


def test_what_waits_is_tried_again_until_it_is_back(
    odd: TableRig, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record's offset is in the buffer still: the second try finds it in the lake."""
    lenient = decoder(odd, unknown_fields="ignore")
    monkeypatch.setattr(replays, "RETRY_S", 0.0)
    tries: list[int] = []

    def later(*args: Any, **words: Any) -> Any:
        tries.append(1)
        if len(tries) == 2:
            odd.tier()
        return replay(*args, **words)

    monkeypatch.setattr(replays, "replay", later)
    done = run(odd, instance, "replay_quarantine", decoder=lenient, dry_run=False)
    assert done.success and len(tries) == 2
    assert shown(odd, done)["replayed"] == 1
