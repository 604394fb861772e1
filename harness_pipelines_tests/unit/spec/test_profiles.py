"""`harness.toml`: which profile counts, what it adds to the environment, and where it is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness_pipelines.cli.main import cli
from harness_pipelines.spec import profiles
from harness_pipelines.spec.profiles import ProfileWrong, nearest_home, with_profile
from harness_pipelines.spec.settings import Settings

TWO = """
default = "dev"
[dev]
HARNESS_HOME = "data/home"
HARNESS_BUFFER_GB = 3
[prod]
HARNESS_DSN = {file = "dsn"}
HARNESS_KAFKA = "kafka:9092"
HARNESS_KAFKA_SASL_PASSWORD = {env = "PASSWORD"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "harness.toml").write_text(TWO)
    (tmp_path / "dsn").write_text("postgresql://db/x\n# a comment\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    return tmp_path


def test_the_chosen_profile_adds_to_the_environment(folder: Path):
    inside = folder / "a" / "b"
    assert with_profile({}, start=inside) == {
        "HARNESS_HOME": str(folder / "data/home"),
        "HARNESS_BUFFER_GB": "3",
    }
    env = {"PASSWORD": "s3cret", "HARNESS_KAFKA": "other:1"}
    found = with_profile(env, profile="prod", start=inside)
    assert found == {**env, "HARNESS_DSN": "postgresql://db/x", "HARNESS_KAFKA_SASL_PASSWORD": "s3cret"}
    assert with_profile({**env, "HARNESS_PROFILE": "prod"}, start=inside)["HARNESS_DSN"] == "postgresql://db/x"


def test_without_a_file_the_environment_is_all_there_is(tmp_path: Path):
    assert with_profile({"HARNESS_KAFKA": "k"}, start=tmp_path) == {"HARNESS_KAFKA": "k"}
    with pytest.raises(ProfileWrong, match="there is no harness.toml here or above, so no profile 'prod'"):
        with_profile({}, profile="prod", start=tmp_path)


@pytest.mark.parametrize(
    ("text", "profile", "why"),
    [
        ("[dev]\n[prod]\n", None, r"has the profiles dev, prod, and none is chosen; give --profile"),
        ("[dev]\n", "dve", r"has no profile 'dve' \(did you mean 'dev'\?\); profiles: dev"),
        ("", "dev", "profiles: none"),
        ("HARNESS_KAFKA = 'k'\n", None, r"'HARNESS_KAFKA' belongs to a profile; write it below a line such as \[dev\]"),
        ("[dev]\nKAFKA = 'k'\n", None, r"\[dev\] KAFKA is no setting"),
        ("[dev]\nHARNESS_PROFILE = 'k'\n", None, "is no setting"),
        ("[dev]\nHARNESS_KAFKA = ['k']\n", None, r"write text, a number, \{env"),
        ("[dev]\nHARNESS_DSN = {env = 'NO_SUCH'}\n", None, "the variable NO_SUCH is not set"),
        ("[dev]\nHARNESS_DSN = {file = 'none'}\n", None, "none cannot be read: No such file"),
        ("[dev]\nHARNESS_DSN = {file = 'none', env = 'X'}\n", None, "write text"),
        ("[dev\n", None, "is no TOML"),
        ("\xff", None, "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, profile: str | None, why: str):
    (tmp_path / "harness.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ProfileWrong, match=why) as caught:
        with_profile({}, profile=profile, start=tmp_path)
    assert str(tmp_path / "harness.toml") in str(caught.value)


def test_a_variable_that_is_set_needs_no_secret_of_the_profile(tmp_path: Path):
    (tmp_path / "harness.toml").write_text("[dev]\nHARNESS_DSN = {env = 'NO_SUCH'}\n")
    assert with_profile({"HARNESS_DSN": "mine"}, start=tmp_path) == {"HARNESS_DSN": "mine"}


def test_a_file_or_home_of_another_user_is_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / ".harness").mkdir()
    (folder / ".harness" / "services.json").touch()
    assert nearest_home(folder / "a") == folder / ".harness"
    assert nearest_home(Path("/")) == Path("/.harness")
    owner = folder.stat().st_uid
    assert profiles.trusted() == {owner, 0}
    monkeypatch.setattr(profiles, "trusted", lambda: {owner + 1})
    with pytest.raises(ProfileWrong, match="belongs to another user"):
        with_profile({}, start=folder)
    assert nearest_home(folder / "a") == folder / "a" / ".harness"


def test_settings_and_commands_follow_the_profile(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder / "a")
    for name in [name for name in os.environ if name.startswith("HARNESS_")]:
        monkeypatch.delenv(name)
    assert Settings.from_env().home == folder / "data/home"
    assert Settings.from_env().buffer_gb == 3
    monkeypatch.setenv("PASSWORD", "s3cret")
    found = Settings.from_env(profile="prod")
    assert (found.kafka, found.kafka_properties) == ("kafka:9092", {"sasl.password": "s3cret"})
    done = CliRunner().invoke(cli, ["--profile", "dve", "table", "list"])
    assert done.exit_code == 2
    assert "did you mean 'dev'" in done.output
