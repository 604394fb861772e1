"""Files that a user names are read up to a limit and never waited for, and a home is one that can be used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness_pipelines.cli.commands import COMMANDS
from harness_pipelines.cli.main import cli
from harness_pipelines.cli.reads.events import _kept
from harness_pipelines.cli.reads.stream import _beginning
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.engines.spark.kafka import _read as pem_setting
from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.ports.errors import KafkaPropertyRefused
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.registry import Registry, RegistryPropertyRefused
from harness_pipelines.spec.load import SPEC_BYTES_MAX, load_spec
from harness_pipelines.spec.sections.catalogs import CatalogSecretMissing, SecretPlace
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import SpecError

SPEC = "table: a.b\nformat: avro\nschema: {file: x.avsc}\ncolumns: {id: long}\n"
KINDS = {
    "a pipe": "cannot be read: it is a named pipe; name a file",
    "a device": "cannot be read: it is a device; name a file",
    "a folder": "cannot be read: it is a folder; name a file",
    "a socket": "cannot be read: it is a socket; name a file",
    "gigabytes": "is larger than",
    "a circle of links": "cannot be read: Too many levels of symbolic links",
    "a long name": "cannot be read: File name too long",
}


@pytest.fixture(params=KINDS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A path that is no file to be read, and what is said of it."""
    path = tmp_path / "x.avsc"
    kind: str = request.param
    opened = socket.socket(socket.AF_UNIX)
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a folder":
            path.mkdir()
        case "a socket":
            with _inside(tmp_path):  # the path of a socket has a hundred bytes at most
                opened.bind(path.name)
        case "gigabytes":
            with path.open("wb") as file:
                file.truncate(2**36)
        case "a circle of links":
            path.symlink_to(path)
        case "a long name":
            path = tmp_path / ("x" * 300)
    yield path, KINDS[kind]
    opened.close()


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.timeout(60)
def test_what_is_no_file_is_refused_by_name_at_once_wherever_a_file_is_named(odd: tuple[Path, str]):
    path, why = odd
    places = {
        SpecError: lambda: load_spec(path),
        CatalogSecretMissing: lambda: SecretPlace(file=str(path)).value("token"),
    }
    for error, use in places.items():
        with pytest.raises(error, match=f"{path.name}.* {why}"):
            use()
    usages: list[Callable[[], object]] = [
        lambda: _kept(f"file:{path}"),
        lambda: pem_setting("ssl.key.location", str(path)),
    ]
    usages += [lambda: _beginning(None, path)] if path.name == "x.avsc" and path.exists() else []
    for use in usages:
        with pytest.raises(UsageError, match=f"{path.name}.* {why}"):
            use()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("odd", ["a pipe", "a device", "a socket", "gigabytes"], indirect=True)
def test_a_file_of_certificates_that_has_no_end_is_given_to_no_library(odd: tuple[Path, str]):
    path, why = odd
    wanted = f"the file {path} {why}"
    with pytest.raises(KafkaPropertyRefused, match=f"HARNESS_KAFKA_SSL_CA_LOCATION: {wanted}"):
        KafkaLog("127.0.0.1:1", {"security.protocol": "SSL", "ssl.ca.location": str(path)})
    with pytest.raises(RegistryPropertyRefused, match=f"HARNESS_REGISTRY_SSL_CA_LOCATION: {wanted}"):
        Registry("https://127.0.0.1:1", {"ssl.ca.location": str(path)}).by_id(1)
    with pytest.raises(UsageError, match=f"sslrootcert of the database's address: {wanted}"):
        session_dsn(f"host=127.0.0.1 sslmode=verify-full sslrootcert={path}", role=None)


@pytest.mark.timeout(60)
def test_a_schema_file_that_is_no_file_is_refused_with_its_line(odd: tuple[Path, str]):
    path, why = odd
    spec = path.with_name("spec.yaml")
    spec.write_text(SPEC.replace("x.avsc", path.name))
    with pytest.raises(SpecError, match=rf"spec.yaml:3: schema.file: \S+ {why}"):
        load_spec(spec)


def test_a_pipe_that_the_shell_hands_over_is_read(tmp_path: Path):
    words = "from harness_pipelines.spec.load import load_spec; print(load_spec('/dev/stdin').table)"
    done = subprocess.run(
        [sys.executable, "-c", words],
        check=False,
        input="table: a.b\ncolumns: {id: long}\n",
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("a.b\n", "")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"\xc3\xa4" * 8)
    assert read_text(tmp_path / "x", 16) == "ä" * 8
    with pytest.raises(Unreadable, match="is larger than 15 bytes"):
        read_text(tmp_path / "x", 15)
    with pytest.raises(Unreadable, match="is not ASCII: ordinal not in range"):
        read_text(tmp_path / "x", 16, encoding="ASCII")
    assert SPEC_BYTES_MAX > SECRET_BYTES_MAX // 2


HOMES = {
    "a long name": ("x" * 300, "File name too long"),
    "a long path": ("/".join(["y" * 200] * 30), "File name too long"),
    "a circle of links": ("loop/x", "Too many levels of symbolic links"),
    "a file": ("file", "Not a directory"),
    "below a file": ("file/x/y", "Not a directory"),
    "a link to nothing": ("dangling", "is a link to nothing"),
    "below a link to nothing": ("dangling/x", "is a link to nothing"),
    "of nobody": ("~nobody-of-this-name/x", "which means no folder: Could not determine home directory"),
}


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize("kind", HOMES)
def test_a_home_that_cannot_be_one_is_named_by_every_command(homes: Path, kind: str):
    home, why = HOMES[kind]
    for command in COMMANDS:
        done = CliRunner().invoke(cli, [command], env={"HARNESS_HOME": home})
        assert done.exit_code == 2, command
        assert done.output.count("\n") == 1 and done.output.startswith("harness: HARNESS_HOME is "), command
        assert why in done.output, command
    with pytest.raises(UsageError, match=f"^HARNESS_HOME is .*{why}"):
        Settings.from_env({"HARNESS_HOME": home})
    with pytest.raises(UsageError, match=f"^--home is .*{why}"):
        Settings.from_env({}, home=Path(home))


def test_a_home_that_this_user_may_not_read_is_named(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    child = os.fork()
    if not child:  # a user without rights, whatever the tests run as
        try:
            closed.chmod(0)
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            Settings.from_env({}, home=closed / "home")
        except UsageError as error:
            os._exit(0 if "Permission denied" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("home", ["new", "new/below/new", "here", "linked", 'it\'s ä "home"'])
def test_a_home_that_can_be_made_or_used_is_taken_as_it_is_called(homes: Path, home: str):
    (homes / "here").mkdir()
    (homes / "linked").symlink_to("here")
    assert Settings.from_env({"HARNESS_HOME": home}).home == homes / home
    assert not (homes / "new").exists()
