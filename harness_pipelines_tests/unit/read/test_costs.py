"""What `harness cost` computes of the work of a day, and how prices are read."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness_pipelines.ledgers.postgres.views.costs import StageDay
from harness_pipelines.read.report.costs import Prices, load_prices, table_costs
from harness_pipelines.spec.wording import SpecError

GB = 10**9
MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


def stage(name: str, day: date = MONDAY, *, table: str = "a.b", **numbers: float) -> StageDay:
    found = {"moves": 1, "records": 0, "bytes": 0, "taken_bytes": 0, "cpu_s": 0.0, **numbers}
    return StageDay(table=table, day=day, stage=name, **found)  # type: ignore[arg-type]


WORK = [
    stage("ingest", TUESDAY, records=5, cpu_s=1.0),
    stage("ingest", records=100, taken_bytes=700, cpu_s=2.0),
    stage("tier", records=100, bytes=2_000, cpu_s=3.0),
    stage("otree", records=100, bytes=2_500),
    stage("compact", records=60, bytes=500),
    stage("tier", table="a.direct", records=9, bytes=10),
]


def test_a_day_has_its_records_once_and_the_bytes_that_were_written_again():
    [one, direct] = table_costs(["a.b", "a.direct"], WORK, lake={}, buffers={}, prices=Prices())
    assert [day.day for day in one.days] == [TUESDAY, MONDAY]
    monday = one.days[1]
    assert (monday.records, monday.written, monday.written_again, monday.cpu_s) == (100, 2_000, 3_000, 5.0)
    assert one.again == 1.5
    assert direct.days[0].records == 9, "without a buffer tier is what takes records"
    assert one.days[0].to_json()["worker_cpu_price"] == round(1.0 / 3600 * Prices().worker_cpu_hour, 6)


def test_what_is_stored_is_priced_by_where_it_is():
    prices = Prices(lake_gb_month=0.02, postgres_gb_month=0.1)
    [one] = table_costs(["a.b"], [], lake={"a.b": 50 * GB}, buffers={"a.b": 2 * GB}, prices=prices)
    assert one.stored_month == pytest.approx(1.2)
    assert one.again is None
    [away] = table_costs(["a.b"], [], lake={"a.b": None}, buffers={}, prices=prices)
    assert away.to_json()["stored_month_price"] is None


def test_a_file_of_prices_names_what_differs_from_the_examples(tmp_path: Path):
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\nlake_gb_month: 0.01\n")
    assert load_prices(file) == Prices(currency="EUR", lake_gb_month=0.01)
    file.write_text("")
    assert load_prices(file) == Prices()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lake_gb_month: -1", "lake_gb_month: write a number of at least 0"),
        ("lake_gb_mont: 1", r"did you mean `lake_gb_month`\?"),
        ("lake_gb_month: free", "lake_gb_month: write a number"),
        ("- 1", "write settings|a spec is|settings"),
    ],
)
def test_wrong_prices_are_refused_by_name(tmp_path: Path, text: str, said: str):
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=said):
        load_prices(file)
    with pytest.raises(SpecError, match="missing"):
        load_prices(tmp_path / "missing.yaml")
