"""deploy/run sets up a checkout: with programs that only record that they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness_pipelines_tests.producer import wait_until

ROOT = Path(__file__).parents[3]
AT_MOST_S = 600  #: on a busy machine

#: Ends when the file *it waits for* is there, and fails if it never comes.
WAITS = """for _ in $(seq 1 3000); do [[ -e $root/{other} ]] && break; sleep 0.1; done
[[ -e $root/{other} ]] || exit 9
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without jars and packages, on a machine with Java and PostgreSQL."""
    root = tmp_path / "checkout"
    (root / "deploy").mkdir(parents=True)
    shutil.copy(ROOT / "deploy/run", root / "deploy/run")
    shutil.copytree(ROOT / "deploy/jars", root / "deploy/jars")
    (root / "deploy/constraints.txt").touch()
    (root / "pyproject.toml").touch()
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/pyvenv.cfg").touch()
    java = tmp_path / "java"
    program(java / "bin/java", "")
    (java / "release").write_text('JAVA_VERSION="17.0.1"\n')
    program(tmp_path / "bin/initdb", "")
    program(tmp_path / "bin/apt-get", 'echo "apt-get $*" >&2; exit 1')
    program(root / ".venv/bin/python", "")
    program(root / ".venv/bin/harness", 'echo "harness $*"')
    return root


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def run(checkout: Path, *words: str, mvn: str = "", uv: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run `deploy/run` with *words*; *mvn* and *uv* are what these programs do, with the checkout in ``$root``."""
    place = checkout.parent
    begun = 'root={}; touch "$root/{}-began"\n'
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
    places = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "JAVA_HOME": str(place / "java")}
    program(place / "bin/mvn", begun.format(checkout, "mvn") + mvn)
    program(checkout / ".venv/bin/uv", begun.format(checkout, "uv") + uv)
    return subprocess.run(
        [checkout / "deploy/run", *(words or ("--version",))],
        env={**clean, **places, **env},
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
        check=False,
    )


def test_jars_come_while_the_packages_are_installed(checkout: Path):
    mvn, uv = WAITS.format(other="uv-began"), WAITS.format(other="mvn-began")

    done = run(checkout, mvn=mvn, uv=uv)

    assert (done.returncode, done.stdout) == (0, "harness --version\n"), done.stderr
    assert sorted(path.name for path in (checkout / ".cache/jars").iterdir()) == ["kafka", "spark"]


def test_the_jars_of_a_peer_come_only_where_the_bench_measures_it(checkout: Path):
    program(checkout.parent / "bin/versitygw", "")

    kinds = {}
    for words in (("demo", "--s3"), ("bench", "stores", "--quick")):
        assert run(checkout, *words).returncode == 0
        kinds[words[0]] = sorted(path.name for path in (checkout / ".cache/jars").iterdir())

    assert kinds == {"demo": ["kafka", "s3", "spark"], "bench": ["connect", "kafka", "s3", "spark"]}


@pytest.fixture
def without_java(checkout: Path) -> Path:
    """The same checkout on a machine without Java, whose programs cannot install it."""
    place, script = checkout.parent, checkout / "deploy/run"
    shutil.rmtree(place / "java")
    program(place / "bin/java", "exit 1")  # hides the real one, and is none: there is no file `release`
    script.write_text(script.read_text().replace("/usr/lib/jvm/*", str(place / "jvm/*")))
    return checkout


def test_without_spark_the_jars_of_kafka_come_alone_and_none_where_kafka_runs_elsewhere(checkout: Path):
    for env in ({"HARNESS_KAFKA": "there:9092"}, {}):
        done = run(checkout, "services", "up", "--no-spark", **env)
        assert (done.returncode, done.stdout) == (0, "harness services up --no-spark\n"), done.stderr
        found = [path.name for path in (checkout / ".cache/jars").iterdir()]
        assert found == ([] if env else ["kafka"])


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("services", "up", "--no-spark"), {}),
        (("demo", "--no-spark"), {}),  # it names what is missing, which may be a Kafka alone
        (("demo",), {"HARNESS_KAFKA": "there:9092"}),
        (("run", "shop.orders"), {"HARNESS_ENGINE": "arrow"}),
    ],
)
def test_commands_that_need_no_java_do_not_ask_for_it_nor_do_those_that_follow(
    without_java: Path, words: tuple[str, ...], env: dict[str, str]
):
    first = run(without_java, *words, **env)
    then = run(without_java, "status")

    assert (first.returncode, first.stdout) == (0, f"harness {' '.join(words)}\n"), first.stderr
    assert (then.returncode, then.stdout) == (0, "harness status\n"), then.stderr
    assert not (without_java / "mvn-began").exists()


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("status",), {}),
        (("demo",), {}),
        (("demo",), {"HARNESS_ENGINE": "arrow"}),
        (("services", "up"), {"HARNESS_ENGINE": "arrow"}),
        (("test",), {"HARNESS_ENGINE": "arrow", "HARNESS_KAFKA": "there:9092"}),
    ],
)
def test_commands_that_need_java_are_not_begun_without_it(
    without_java: Path, words: tuple[str, ...], env: dict[str, str]
):
    done = run(without_java, *words, **env)

    assert done.returncode == 1
    assert "openjdk-17-jre-headless" in done.stderr
    assert done.stdout == ""


def test_jars_that_cannot_be_had_end_the_set_up_with_what_is_missing(checkout: Path):
    done = run(checkout, mvn="echo 'Could not find artifact org.x:y:jar:1.0 in central'; exit 1", uv="")

    assert done.returncode == 1
    assert "Maven could not get: org.x:y:jar:1.0" in done.stderr
    assert "harness" not in done.stdout


def test_maven_is_ended_where_the_packages_cannot_be_installed(checkout: Path):
    mvn = 'echo $$ >"$root/pid.part"\nmv "$root/pid.part" "$root/pid"\nsleep 600'

    done = run(checkout, mvn=mvn, uv=WAITS.format(other="pid") + "exit 1")

    assert done.returncode == 1
    assert "the Python packages could not be installed" in done.stderr
    pid = int((checkout / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "Maven has ended")
