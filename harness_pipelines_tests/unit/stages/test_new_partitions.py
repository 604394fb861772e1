"""When the units that ingest look at a table's partitions again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.ingest.new_partitions import Joiner


class Ledger:
    """A table of one partition, whose topic has two."""

    def __init__(self, *, answers: bool) -> None:
        self.there, self._answers = {0: 0}, answers

    def positions(self, _table: object) -> dict[int, int]:
        return dict(self.there)

    def add_partitions(self, _claim: object, starts: dict[int, int]) -> None:
        self.there |= starts
        if not self._answers:
            raise OutcomeUnknown("the COMMIT was sent and its answer was lost")


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "answer lost"])
def test_partitions_that_joined_are_read_though_the_answer_of_the_commit_was_lost(
    monkeypatch: pytest.MonkeyPatch, answers: bool
):
    ledger = Ledger(answers=answers)
    monkeypatch.setattr(ingest, "join_partitions", lambda *_, known: {p: 0 for p in (0, 1) if p not in known})
    stores: Any = SimpleNamespace(segments=ledger, ledger=ledger, log=None)
    owner: Any = SimpleNamespace(table=SimpleNamespace(name="a.b", spec=SimpleNamespace(key=())), stores=stores)
    claim: Any = SimpleNamespace()
    asked: list[bool] = []
    joiner = Joiner(owner, lambda: claim, lambda: asked.append(True))
    assert not joiner.knows_all_since(0.0)
    assert asked

    if answers:
        assert not joiner.look(), "what joined has to be seen once more"
    else:
        with pytest.raises(OutcomeUnknown):
            joiner.look()
    assert joiner.look()

    assert joiner.generation == 1
    assert joiner.knows_all_since(0.0)
