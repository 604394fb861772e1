"""Contracts: what breaks one is quarantined, counted or stops the table, on every route to table and readers."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pandera.pandas as pandera
import pytest
import structlog

from harness_pipelines.app.checks import contract as contract_check
from harness_pipelines.formats.contract.pandera import ContractUnusable
from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.show.status import KafkaEnds, look
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.ingest.refusing import RefusedTooMany
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.tier.contract import ContractBroken
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, running

from .conftest import MakeRig

CONTRACT = {"columns": {"n": {"ge": 0}, "s": {"matches": "row .*"}}}
MODULE = "contracts_of_faults"


def bad(number: int, n: int = -1) -> bytes:
    return b'{"id":%d,"n":%d,"s":"row %d"}' % (number, n, number)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = sys.modules[MODULE] = types.ModuleType(MODULE)
    made.Orders = pandera.DataFrameSchema({"n": pandera.Column(checks=pandera.Check.ge(0))})  # type: ignore[attr-defined]
    yield made
    sys.modules.pop(MODULE, None)


def violations(rig: TableRig) -> dict[tuple[str, str], int]:
    shown = look(rig.harness, rig.table, KafkaEnds(rig.harness)).to_json()["contract"]
    return {(one["check"], one["severity"]): one["records"] for one in shown}


def changed(rig: TableRig, **words: Any) -> None:
    """Apply the rig's spec with other words."""
    wanted = {**dump_spec(rig.table.spec), **words}
    rig.table = rig.harness.apply(TableSpec.model_validate(wanted))


def test_a_record_that_breaks_a_check_is_set_aside_with_its_bytes_and_the_partition_goes_on(make_rig: MakeRig):
    rig = make_rig(contract=CONTRACT)
    rig.produce(3)
    offset = rig.produce_misfit(bad(900))
    other = rig.produce_misfit(b'{"id": 901, "s": "nothing"}', partition=1)
    rig.produce(2)
    rig.ingest()
    rig.assert_exact()
    assert rig.quarantine()[0, offset] == ("contract", "`n.ge`: expected >= 0, got -1", bad(900))
    assert rig.quarantine()[1, other][:2] == (
        "contract", "`s.matches`: expected text that matches row .*, got 'nothing'"
    )  # fmt: skip
    assert violations(rig) == {("n.ge", "quarantine"): 1, ("s.matches", "quarantine"): 1}
    found = contract_check(rig.stores, rig.table.row)
    assert not found.passed and found.numbers == {"n.ge (quarantine)": 1, "s.matches (quarantine)": 1}
    assert rig.table.audit().ok
    rig.tier()
    rig.assert_exact()
    assert rig.table.audit(full=True).ok


def test_a_warning_takes_the_row_and_counts_it_in_the_same_transaction(make_rig: MakeRig):
    rig = make_rig(partitions=2, contract={**CONTRACT, "severity": "warn"})
    for partition in (0, 1):
        rig.kafka.produce(rig.topic, partition, [bad(1), bad(2), *rig.values(3)])
    rig.ingest()
    rig.kafka.produce(rig.topic, 0, [bad(3)])
    rig.ingest()
    rig.assert_exact()
    assert violations(rig) == {("n.ge", "warn"): 5}
    assert contract_check(rig.stores, rig.table.row).numbers == {"n.ge (warn)": 5}


def test_a_check_that_stops_names_partition_offset_and_check_and_takes_nothing(make_rig: MakeRig):
    rig = make_rig(partitions=1, contract={**CONTRACT, "severities": {"n.ge": "stop"}})
    offset = rig.produce_misfit(bad(1))
    with pytest.raises(
        RecordRefused, match=rf"{rig.name}: partition 0, offset {offset}: contract: `n.ge`.*its contract says `stop`"
    ):
        rig.ingest()
    assert not rig.quarantine() and not rig.read()
    assert rig.harness.table(rig.name).row.stopped
    changed(rig, contract={**CONTRACT})
    rig.produce(2)
    rig.ingest()
    rig.assert_exact()
    assert rig.harness.table(rig.name).row.stopped is None


@pytest.mark.long
def test_without_a_buffer_a_read_and_the_lake_have_what_keeps_the_contract(make_rig: MakeRig):
    rig = make_rig(partitions=2, buffer="none", contract=CONTRACT)
    rig.produce(3)
    rig.produce_misfit(bad(7), partition=1)
    rig.produce(1)
    assert rig.read() == rig.truth
    rig.tier()
    rig.assert_exact()
    assert violations(rig) == {("n.ge", "quarantine"): 1}
    assert rig.table.audit().ok


def test_a_live_stream_does_not_show_what_is_set_aside(make_rig: MakeRig):
    rig = make_rig(partitions=1, contract=CONTRACT)
    rig.produce(2)
    rig.ingest()
    rig.produce_misfit(bad(7))
    rig.produce(2)
    seen: list[int] = []
    with rig.working(INGEST):  # which sets the record aside: until then the stream waits there
        for batch in rig.table.stream(follow=False):
            seen += batch.rows.column("id").to_pylist()
    assert sorted(seen) == sorted(number for _, _, number in rig.truth)


def test_a_changed_contract_is_for_records_after_the_change(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.kafka.produce(rig.topic, 0, [bad(1)])
    rig.ingest()
    changed(rig, contract=CONTRACT)
    rig.produce_misfit(bad(2))
    rig.ingest()
    rig.assert_exact()
    assert rig.table.audit().ok, "the record that was taken before stays"
    changed(rig, contract={"columns": {"n": {"ge": -1}}})
    rig.kafka.produce(rig.topic, 0, [bad(3)])
    rig.ingest()
    rig.assert_exact()
    assert rig.table.audit(full=True).ok, "the record that was set aside stays"


def test_too_many_refused_records_stop_the_table_at_the_first_that_is_one_too_many(make_rig: MakeRig):
    rig = make_rig(partitions=1, contract=CONTRACT, stop_above={"refused": "10%", "of_last": 20})
    rig.produce(30)
    rig.produce_misfit(bad(1))
    rig.ingest()
    rig.produce_misfit(b"{")
    rig.produce(5)
    [at] = rig.kafka.produce(rig.topic, 0, [bad(2)])
    rig.produce(3)
    with pytest.raises(
        RefusedTooMany, match=rf"{rig.name}: partition 0, offset {at}: more than 2 of the last 20 .*raise or remove"
    ):
        rig.ingest()
    assert rig.table.positions()[0].bounds.buffer_hi == at, "what comes before is taken"
    assert len(rig.quarantine()) == 2
    with pytest.raises(RefusedTooMany, match=rf"offset {at}:"):
        rig.ingest()
    rig._misfits.add((0, at))
    changed(rig, stop_above={"refused": "20%", "of_last": 20})
    rig.ingest()
    rig.assert_exact()


def test_a_table_whose_module_is_not_where_the_worker_is_stops_by_name_and_others_go_on(
    make_rig: MakeRig, module: types.ModuleType
):
    rig = make_rig(partitions=1, contract={"module": MODULE, "name": "Orders"})
    other = make_rig(partitions=1)
    for one in (rig, other):
        one.produce(3)
    rig.produce_misfit(bad(5))
    del sys.modules[MODULE]
    worker = Worker(rig.stores, [rig.table.row, other.table.row], WorkerOptions(stages=INGEST))
    with running(worker):
        other.await_exact()
        why = rf"{rig.name}: the contract's module '{MODULE}' is not there.*PYTHONPATH"
        stopped = lambda: re.search(why, rig.harness.table(rig.name).row.stopped or "") is not None  # noqa: E731
        wait_until(stopped, "the table says why it stopped")
        assert rig.table.positions()[0].bounds.buffer_hi == 0
        sys.modules[MODULE] = module
        rig_rows = rig.truth.total()
        wait_until(lambda: rig.read().total() == rig_rows, "it goes on once the module is there")
    rig.assert_exact()


def test_a_spec_whose_module_is_not_there_makes_no_table(make_rig: MakeRig):
    with pytest.raises(ContractUnusable, match=r"'not_there_at_all' is not there") as raised:
        make_rig(contract={"module": "not_there_at_all", "name": "Orders"})
    name = str(raised.value).partition(":")[0]
    harness = make_rig().harness
    with pytest.raises(TableUnknown):
        harness.table(name)


def test_without_a_buffer_a_module_that_is_not_there_holds_tier_and_costs_no_attempt(
    make_rig: MakeRig, module: types.ModuleType
):
    rig = make_rig(partitions=1, buffer="none", contract={"module": MODULE, "name": "Orders"})
    rig.produce(1)
    del sys.modules[MODULE]
    with pytest.raises(ContractUnusable, match=MODULE):
        rig.worker(TIER, until_idle=True).run()
    assert rig.stores.tables.open_move(rig.table.row, Stage.TIER, shard=0) is None


def test_rows_that_a_contract_of_today_would_refuse_are_moved_and_counted_once(make_rig: MakeRig):
    """They were taken before the contract was changed: the lake gets them, and somebody hears of it."""
    rig = make_rig(partitions=2)
    rig.produce(3)
    rig.kafka.produce(rig.topic, 1, [bad(1), bad(2)])
    rig.ingest()
    changed(rig, contract=CONTRACT)
    with structlog.testing.capture_logs() as logs:
        rig.tier()
    [told] = [one for one in logs if one["event"] == "tier.contract_broken"]
    wanted = {"table": rig.name, "partition": 1, "first": 3, "last": 4, "rows": 2, "check": "n.ge"}
    assert told.items() >= wanted.items() and told["log_level"] == "warning"
    assert violations(rig) == {("n.ge", "warn"): 2}
    assert not contract_check(rig.stores, rig.table.row).passed
    assert rig.table.read().num_rows == 8
    assert rig.table.audit(full=True).ok
    rig.produce(2)
    rig.ingest()
    rig.tier()
    assert violations(rig) == {("n.ge", "warn"): 2}, "what is in the lake is not asked again"


def test_a_check_that_stops_holds_the_move_by_name_until_it_warns(make_rig: MakeRig):
    rig = make_rig(partitions=1, key=["id"])
    rig.kafka.produce(rig.topic, 0, [*rig.values(1), bad(7)])
    rig.ingest()
    changed(rig, contract={**CONTRACT, "severities": {"n.ge": "stop"}})
    stops = (
        rf"{rig.name}: move \d+: partition 0, offsets 1 to 1: 1 rows break `n.ge` .*says `stop`; nothing was published"
    )
    with pytest.raises(ContractBroken, match=stops):
        rig.tier()
    assert rig.table.read().num_rows == 2, "they are in the buffer as before"
    assert rig.harness.table(rig.name).row.stopped
    changed(rig, contract={**CONTRACT, "severities": {"n.ge": "warn"}})
    rig.tier()
    assert rig.table.read().num_rows == 2
    assert violations(rig) == {}, "a check that warns counts a row when it is taken"
