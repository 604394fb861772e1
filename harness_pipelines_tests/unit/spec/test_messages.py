"""What is said of specs that are wrong: the file, the line, the setting, what was found and the way on."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from harness_pipelines.cli.main import cli
from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.spec.load import load_spec, located
from harness_pipelines.spec.wording import SpecError, quantity
from harness_pipelines_tests.unit.spec.said import SAID
from harness_pipelines_tests.unit.spec.wrong import SPECS
from harness_pipelines_tests.unit.spec.wrong_yaml import CASES

ALL_SPECS = SPECS | {name: text for name, (text, _) in CASES.items()}
ALL_SAID = SAID | {name: said for name, (_, said) in CASES.items()}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _apply(path):
    """What `table apply` checks before it asks a service."""
    with located(path):
        RecordCodec(load_spec(path), NoSchemas())


@pytest.mark.parametrize("name", ALL_SPECS)
def test_a_wrong_spec_is_refused_in_words_that_help(name, tmp_path):
    (tmp_path / "orders.yaml").write_text(ALL_SPECS[name], encoding="utf-8")

    with pytest.raises(HarnessError) as raised:
        _apply("orders.yaml")

    assert str(raised.value) == ALL_SAID[name]


def test_the_command_says_the_same_before_it_connects(tmp_path):
    said = {}
    for name, text in ALL_SPECS.items():
        (tmp_path / "orders.yaml").write_text(text, encoding="utf-8")
        try:
            load_spec("orders.yaml")
        except SpecError:
            found = CliRunner().invoke(cli, ["--home", "home", "table", "apply", "orders.yaml"])
            said[name] = (found.exit_code, found.output)

    assert said == {name: (2, f"harness: {ALL_SAID[name]}\n") for name in said}
    assert len(said) > 100


def test_each_message_has_a_place_and_ends_without_a_traceback():
    for message in SAID.values():
        for line in message.splitlines():
            assert line.startswith("orders.yaml:"), line
            assert not any(word in line for word in ("Error", "Traceback", "Input should", "validation", "\\n")), line


def test_one_is_singular_and_any_other_count_is_not():
    assert [quantity(count, "quarantined record") for count in (0, 1, 2_000)] == [
        "0 quarantined records",
        "1 quarantined record",
        "2,000 quarantined records",
    ]
