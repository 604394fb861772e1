"""A file that is damaged is damaged while the block lasts, and never afterwards."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness_pipelines.chaos import damage
from harness_pipelines.chaos.damage import damaged, planted
from harness_pipelines.chaos.schedule import How
from harness_pipelines.protocol.reading.plan import ReadPlan

ORIGINAL = bytes(range(200))


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999999])
def test_a_flip_changes_one_bit_and_a_cut_leaves_the_beginning(place: float):
    flipped = damaged(ORIGINAL, How.FLIP, place)
    assert len(flipped) == len(ORIGINAL)
    assert sum((a ^ b).bit_count() for a, b in zip(flipped, ORIGINAL, strict=True)) == 1
    assert damaged(ORIGINAL, How.CUT, place) == ORIGINAL[: int(place * len(ORIGINAL))]


def test_the_file_is_as_before_when_the_block_ends_whatever_ends_it(tmp_path: Path):
    path = tmp_path / "data.parquet"
    path.write_bytes(ORIGINAL)
    with pytest.raises(KeyError), planted(path.as_uri(), How.CUT, 0.5):
        assert path.read_bytes() == ORIGINAL[:100]
        raise KeyError("anything")
    assert path.read_bytes() == ORIGINAL
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_that_cannot_begin_because_postgres_is_away_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
):
    (tmp_path / "plan.json").write_bytes(b"{}")
    (tmp_path / "file").write_bytes(b"as it was")
    monkeypatch.setattr(ReadPlan, "from_json", lambda _: None)
    monkeypatch.setenv("HARNESS_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    monkeypatch.setattr(
        "sys.argv", ["damage", "a.b", f"{tmp_path}/plan.json", (tmp_path / "file").as_uri(), "cut", "0.5"]
    )
    damage.main()
    [told] = capfdbinary.readouterr().out.splitlines()
    assert "PostgresUnreachable" in orjson.loads(told)["away"]
    assert (tmp_path / "file").read_bytes() == b"as it was"
