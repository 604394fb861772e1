"""`harness quarantine replay` and `drop`, from a record that did not fit to a row or to one that is given up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli
from harness_pipelines_tests.producer import KafkaRig

ODD = b'{"id":1000,"amount":1.5,"more":1}'
EARLY = (0, 30)  #: partition and offset of the record that is no JSON
LATE = (1, 30)  #: and of the one that has a field too many


@pytest.fixture
def table(harness: Cli, rig: KafkaRig, spec: tuple[str, Path]) -> str:
    """A table whose good records are in the lake, beside two that did not fit and were quarantined by two commits."""
    name, file = spec
    file.write_text(file.read_text() + "unknown_fields: quarantine\n")
    topic = file.read_text().split("topic: ")[1].split()[0]
    harness("table", "apply", str(file))
    harness("run", name, "--until-idle")
    rig.produce(topic, 1, [ODD], timestamp_ms=int(time.time() * 1000) + 1_000)  # later than the one of EARLY
    harness("run", name, "--until-idle")
    return name


def counts(harness: Cli, table: str) -> dict[tuple[str, str], int]:
    reasons = json.loads(harness("quarantine", "list", table, "--json").stdout)["reasons"]
    return {(one["state"], one["reason"]): one["records"] for one in reasons}


def test_a_record_is_put_back_once_the_spec_takes_it_and_another_given_up(
    harness: Cli, table: str, spec: tuple[str, Path]
):
    assert counts(harness, table) == {("held", "malformed"): 1, ("held", "unknown_field"): 1}
    refused = harness("quarantine", "replay", table).stdout
    assert "2 records decoded: 0 replayed" in refused
    assert f"{LATE[0]}:{LATE[1]}  unknown_field" in refused

    _, file = spec
    file.write_text(file.read_text().replace("unknown_fields: quarantine", "unknown_fields: ignore"))
    harness("table", "apply", str(file))
    tried = json.loads(harness("quarantine", "replay", table, "--dry-run", "--json").stdout)
    assert (tried["replayed"], tried["refused"], tried["versions"]) == (1, {"malformed": 1}, [])
    done = harness("quarantine", "replay", table, "--reason", "unknown_field").stdout
    assert "1 record decoded: 1 replayed in version " in done
    assert len(json.loads(harness("read", table, "--json").stdout)["rows"]) == GOOD + 1

    assert harness("quarantine", "drop", table, "--dry-run").stdout == "1 record would be dropped\n"
    assert "--yes" in harness("quarantine", "drop", table, code=2).stderr
    harness("quarantine", "drop", table, "--yes")
    assert counts(harness, table) == {("dropped", "malformed"): 1, ("replayed", "unknown_field"): 1}
    listed = json.loads(harness("quarantine", "list", table, "--state", "dropped", "--json").stdout)["records"]
    assert [(one["partition"], one["offset"]) for one in listed] == [EARLY]
    assert "dropped by " in harness("quarantine", "show", table, *map(str, EARLY)).stdout
    assert json.loads(harness("status", table, "--json").stdout)["tables"][0]["quarantined"] == 0
    harness("audit", table, "--full")


def test_what_is_listed_is_chosen_by_every_word_that_is_given(harness: Cli, table: str):
    def chosen(*words: str) -> list[tuple[int, int]]:
        shown = json.loads(harness("quarantine", "list", table, *words, "--json").stdout)
        found = [(one["partition"], one["offset"]) for one in shown["records"]]
        assert sum(one["records"] for one in shown["reasons"]) == len(found), "what is counted is what is chosen"
        return found

    [early] = json.loads(harness("quarantine", "list", table, "--reason", "malformed", "--json").stdout)["records"]
    [late] = json.loads(harness("quarantine", "list", table, "--detail", "`more`", "--json").stdout)["records"]
    assert [(one["partition"], one["offset"]) for one in (early, late)] == [EARLY, LATE]
    assert early["kafka_time"] < late["kafka_time"], "the one was produced after the other"

    assert chosen("--since", early["kafka_time"]) == [EARLY, LATE]
    assert chosen("--until", late["kafka_time"]) == [EARLY]
    assert chosen("--since", late["kafka_time"], "--reason", "malformed") == []
    assert chosen("--reason", "malformed", "--reason", "unknown_field") == [EARLY, LATE]
    assert early["recorded_at"] < late["recorded_at"], "each by a commit that came after the other's"
    assert chosen("--set-aside-since", late["recorded_at"]) == [LATE]
    assert chosen("--set-aside-until", late["recorded_at"]) == [EARLY]

    drop = ("quarantine", "drop", table, "--yes")
    assert harness(*drop, "--until", early["kafka_time"]).stdout == "0 records dropped\n"
    assert harness(*drop, "--since", late["kafka_time"]).stdout == "1 record dropped\n"
    assert chosen("--state", "dropped", "--partition", str(LATE[0])) == [LATE]


def test_what_cannot_be_asked_is_refused(harness: Cli, table: str):
    assert "name that too" in harness("quarantine", "replay", table, "--offset", "1", code=2).stderr
    assert "(format json)" in harness("quarantine", "list", table, "--schema-id", "1", code=2).stderr
    assert "is not a time such as" in harness("quarantine", "list", table, "--since", "noon", code=2).stderr
