"""Paths in the settings of the embedded Spark, whatever a home is called."""

import re
import shlex
from pathlib import Path

import pytest

from harness_pipelines.services.base import Place
from harness_pipelines.services.spark import Spark


def unescaped(value: str) -> str:
    """As Java reads a value of a properties file."""
    return re.sub(r"\\(.)", r"\1", value)


@pytest.mark.parametrize("name", ["plain", "with space", "Jürgen's", 'a "quoted" one', "back\\slash", "a,b"])
def test_a_path_with_spaces_quotes_and_umlauts_stays_one_option(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / name
    home.mkdir()
    monkeypatch.setattr("harness_pipelines.services.spark.jars", lambda place, kind: home / "jars" / kind)
    Spark(Place(home=home, jars=None)).prepare((1234,), print)
    lines = (home / "spark/conf/spark-defaults.conf").read_text().splitlines()
    found = {key: unescaped(value) for key, value in (line.split(None, 1) for line in lines)}
    options = shlex.split(found["spark.driver.extraJavaOptions"])
    assert options == ["-Duser.timezone=UTC", f"-Djava.io.tmpdir={home}/spark/tmp"]
    assert found["spark.local.dir"] == "tmp", "a list, split at commas, of folders below the server's own"
    assert found["spark.driver.extraClassPath"] == f"{home}/jars/spark/*"
