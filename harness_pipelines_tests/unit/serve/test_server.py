"""The server on real sockets: TLS, its end, clients that are slow or gone, and how the command ends."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from harness_pipelines.cli.ending import TERMINATED
from harness_pipelines.errors import UsageError
from harness_pipelines.serve.server import CertificateFiles, Serving, Tls, is_loopback, listening, serving, url_of
from harness_pipelines.serve.values import CutAnswer
from harness_pipelines_tests.certificates import Authority
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
from harness_pipelines_tests.served import MemoryCatalog, application, cut_of, login

ORDERS = "/v1/namespaces/shop/tables/orders"


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog({"shop.orders": cut_of("shop.orders")})


@contextmanager
def served(catalog: MemoryCatalog, **options: Any) -> Iterator[tuple[str, Serving]]:
    with listening("127.0.0.1", 0) as listener, serving(application(catalog), listener, **options) as server:
        yield url_of(listener, host="127.0.0.1", tls="tls" in options), server


def ask(url: str, table: str = "orders", **options: Any) -> httpx.Response:
    place = ORDERS.replace("orders", table)
    return httpx.get(f"{url}{place}", headers=login(), timeout=DEADLINE_S, trust_env=False, **options)


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


HEAD = f"GET {ORDERS} HTTP/1.1\r\nhost: localhost\r\nauthorization: {login()['authorization']}\r\n"


# -- sockets ------------------------------------------------------------------------------------------------------


def test_a_load_is_answered_over_a_socket(catalog: MemoryCatalog):
    with served(catalog) as (url, _):
        answer = ask(url)
        assert (answer.status_code, answer.headers["etag"]) == (200, cut_of("shop.orders", 7).etag)
        assert "server" not in answer.headers


def test_an_address_that_is_taken_or_wrong_is_wrong_usage():
    with listening("127.0.0.1", 0) as listener:
        with pytest.raises(UsageError, match=r"--port"):
            listening("127.0.0.1", listener.getsockname()[1])
        assert is_loopback(listener)
    with pytest.raises(UsageError, match="--host"):
        listening("203.0.113.1", 0)
    with pytest.raises(UsageError, match="--host"):
        listening("no.such.host.invalid", 0)


def test_only_addresses_of_this_machine_are_the_loopback():
    with listening("0.0.0.0", 0) as everywhere, listening("localhost", 0) as here:
        assert not is_loopback(everywhere)
        assert is_loopback(here)
        assert socket.gethostname() in url_of(everywhere, host="0.0.0.0", tls=True)
        assert url_of(here, host="localhost", tls=False).startswith("http://localhost:")


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n"]
)
def test_what_is_no_request_gets_no_trace_and_harms_no_other(catalog: MemoryCatalog, sent: bytes):
    with served(catalog) as (url, _):
        with connected(url) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: client.recv(65536), b""))
        assert b"Traceback" not in said
        assert ask(url).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET x[y HTTP/1.1\r\nhost: localhost",
        b"GET /v1/config HTTP/1.1\r\nhost: ::1]",
        b"GET /v1/config HTTP/1.1\r\nhost: [::1]]",
        b"GET ?a HTTP/1.1\r\nhost: localhost",
        b"OPTIONS * HTTP/1.1\r\nhost: localhost",
        b"GET http://[ HTTP/1.1\r\nhost: localhost",
        b"GET /v1/config HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer \xff\xfe",
        b"GET /v1/config HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic %%%",
    ],
)
def test_what_makes_no_address_is_a_stranger_as_all_others(catalog: MemoryCatalog, head: bytes):
    with served(catalog) as (url, _), capture_logs() as logs:
        for _ in range(3):
            with connected(url) as client:
                client.sendall(head + b"\r\nconnection: close\r\n\r\n")
                said = b"".join(iter(lambda: client.recv(65536), b""))
            assert said.startswith((b"HTTP/1.1 401", b"HTTP/1.1 403")), said
    assert [line["event"] for line in logs if line["event"] != "serve.unknown"] == []
    assert len(logs) <= 1, "a flood of them makes no more lines"


def test_a_head_of_a_request_without_an_end_is_refused(catalog: MemoryCatalog):
    with served(catalog) as (url, _), connected(url) as client:
        client.sendall(b"GET /" + b"x" * 80_000)
        assert client.recv(12).startswith(b"HTTP/1.1 400")


# -- clients that are slow, or gone -------------------------------------------------------------------------------


def test_a_client_that_sends_no_request_is_dropped_and_holds_up_no_other(catalog: MemoryCatalog):
    with served(catalog, patience_s=0.2) as (url, _), connected(url) as silent, connected(url) as half:
        half.sendall(HEAD.encode())
        assert ask(url).status_code == 200
        for client in (silent, half):
            assert ended(client)


def test_a_client_that_sends_its_request_a_byte_at_a_time_is_dropped(catalog: MemoryCatalog):
    with served(catalog, patience_s=0.2) as (url, _), connected(url) as client:
        sent = iter(HEAD.encode() * 10_000)

        def gone() -> bool:
            try:
                client.send(bytes([next(sent)]))
            except OSError:
                return True
            return False

        wait_until(gone, "the server gave the client up")


def test_a_client_that_takes_no_answer_is_dropped(catalog: MemoryCatalog):
    catalog.cuts["shop.orders"] = CutAnswer(
        snapshot_id=7, metadata_location="x", metadata=b'"%b"' % (b"x" * 64 * 1024 * 1024)
    )
    with served(catalog, patience_s=0.2) as (url, server), connected(url) as client:
        client.sendall(HEAD.encode() + b"\r\n")
        assert catalog.arrived.acquire(timeout=DEADLINE_S)
        wait_until(lambda: not server.connections, "the connection was given up")
        assert httpx.get(f"{url}/health", timeout=DEADLINE_S, trust_env=False).status_code == 200


def test_a_load_that_takes_longer_than_patience_is_answered(catalog: MemoryCatalog):
    catalog.go_on.clear()
    with served(catalog, patience_s=0.05) as (url, _), ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, url)
        assert catalog.arrived.acquire(timeout=DEADLINE_S)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 0.3, "patience ended many times")
        catalog.go_on.set()
        assert answer.result(DEADLINE_S).status_code == 200


def test_a_client_that_is_gone_before_its_answer_harms_no_other(catalog: MemoryCatalog):
    catalog.go_on.clear()
    with served(catalog) as (url, _), capture_logs() as logged:
        with connected(url) as client:
            client.sendall(HEAD.encode() + b"\r\n")
            assert catalog.arrived.acquire(timeout=DEADLINE_S)
        catalog.go_on.set()
        assert ask(url).status_code == 200
    assert [one["event"] for one in logged if one["log_level"] == "error"] == []


def test_loads_that_hang_leave_threads_for_logins_and_health(catalog: MemoryCatalog):
    catalog.go_on.clear()
    catalog.cuts |= {f"shop.t{number}": cut_of(f"shop.t{number}") for number in range(40)}
    with served(catalog, grace_s=1) as (url, _), ThreadPoolExecutor(40) as pool:
        loads = [pool.submit(ask, url, f"t{number}") for number in range(40)]
        for _ in range(16):
            assert catalog.arrived.acquire(timeout=DEADLINE_S)
        assert not catalog.arrived.acquire(blocking=False), "no more of them run at once"
        assert httpx.get(f"{url}/health", timeout=DEADLINE_S, trust_env=False).status_code == 200
        catalog.go_on.set()
        assert {load.result(DEADLINE_S).status_code for load in loads} == {200}


def test_a_table_whose_load_hangs_holds_up_no_other_one(catalog: MemoryCatalog):
    """An engine loads a table several times, and more queries come while its first cut is made."""
    catalog.go_on.clear()
    catalog.cuts["shop.other"] = cut_of("shop.other")
    with served(catalog, grace_s=1) as (url, _), ThreadPoolExecutor(41) as pool:
        loads = [pool.submit(ask, url) for _ in range(40)]
        assert catalog.arrived.acquire(timeout=DEADLINE_S)
        other = pool.submit(ask, url, "other")
        assert catalog.arrived.acquire(timeout=DEADLINE_S)
        assert sorted(catalog.asked) == [("shop.orders", ""), ("shop.other", "")]
        catalog.go_on.set()
        assert {load.result(DEADLINE_S).status_code for load in (*loads, other)} == {200}


def ended(client: socket.socket) -> bool:
    """Wait until the server has ended the connection, with an answer or without."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


# -- the end ------------------------------------------------------------------------------------------------------


def test_a_load_that_runs_is_answered_before_the_end_and_no_new_one_is_taken(catalog: MemoryCatalog):
    catalog.go_on.clear()
    with ThreadPoolExecutor() as pool:
        with served(catalog) as (url, _):
            answer = pool.submit(ask, url)
            assert catalog.arrived.acquire(timeout=DEADLINE_S)
            threading.Timer(0.3, catalog.go_on.set).start()
        assert answer.result(DEADLINE_S).status_code == 200
    with pytest.raises(httpx.ConnectError):
        ask(url)


def test_an_end_waits_for_a_load_that_hangs_no_longer_than_its_grace(catalog: MemoryCatalog):
    catalog.go_on.clear()
    with ThreadPoolExecutor() as pool:
        with served(catalog, grace_s=1) as (url, _):
            answer = pool.submit(ask, url)
            assert catalog.arrived.acquire(timeout=DEADLINE_S)
            began = time.monotonic()
        assert time.monotonic() - began < 15
        assert was_cut_off(answer)
        catalog.go_on.set()


SERVES = """
import os
import signal
import sys
import threading
from functools import partial
from harness_pipelines.cli.ending import end_in_time
from harness_pipelines.cli.operate.serve import interruptible, run
from harness_pipelines.serve import server
from harness_pipelines.serve.server import GRACE_S, listening, url_of
from harness_pipelines_tests.served import MemoryCatalog, application, cut_of

end_in_time()
catalog = MemoryCatalog({"shop.orders": cut_of("shop.orders")})
if sys.argv[1] != "answers":
    catalog.go_on.clear()
if sys.argv[1] in ("hangs", "hangs for long"):
    arrives = threading.Thread(target=lambda: catalog.arrived.acquire() and print("arrived", flush=True), daemon=True)
    arrives.start()
if sys.argv[1] == "hangs for long":
    other = lambda: os.read(0, 1) and signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    threading.Thread(target=other, daemon=True).start()
server.serving = partial(server.serving, grace_s=GRACE_S if sys.argv[1] in ("answers", "hangs") else 600)
def begun():
    print(url_of(listener, host="127.0.0.1", tls=False), flush=True)
    if sys.argv[1] == "is interrupted":
        catalog.arrived.acquire()
        raise KeyboardInterrupt
with listening("127.0.0.1", 0) as listener, interruptible() as stop:
    run(application(catalog), listener, stop, tls=None, started=begun)
sys.exit(stop.number)
"""
AT_ONCE_S = 40.0  #: on a busy machine; a load that hangs ends by itself after a minute


@contextmanager
def process(how: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-c", SERVES, how]
    with subprocess.Popen(command, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as started:
        try:
            assert started.stdout is not None
            yield started.stdout.readline().strip(), started
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_good_order(number: signal.Signals):
    with process("answers") as (url, started):
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:  # its connection stays open
            assert client.get(f"{url}{ORDERS}", headers=login()).status_code == 200
            began = time.monotonic()
            started.send_signal(number)
            _, said = started.communicate(timeout=DEADLINE_S)
        assert (started.returncode, "Traceback" in said) == (number, False)
        assert "stopping" in said
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("which", ["the main thread", "another thread"])
def test_a_second_ctrl_c_ends_at_once_though_a_load_hangs(which: str):
    """The system gives a signal to any thread; only the main one runs the handler, and may be waiting for the server.

    The grace of running loads is longer than this test waits: on a slow machine, too, it is not what ends them.
    """
    with process("hangs for long") as (url, started), ThreadPoolExecutor() as pool:
        load = pool.submit(ask, url)
        assert started.stderr is not None
        await_load(started)
        started.send_signal(signal.SIGINT)
        assert "stopping" in started.stderr.readline()
        began = time.monotonic()
        if which == "the main thread":
            started.send_signal(signal.SIGINT)
        else:
            assert started.stdin is not None
            started.stdin.write("x")
            started.stdin.flush()
        assert started.wait(DEADLINE_S) != 0
        assert time.monotonic() - began < AT_ONCE_S
        assert was_cut_off(load)


def test_a_second_ctrl_c_that_comes_before_the_wait_for_loads_begins_ends_it_too():
    with process("is interrupted") as (url, started), ThreadPoolExecutor() as pool:
        load, began = pool.submit(ask, url), time.monotonic()
        assert started.wait(DEADLINE_S) != 0
        assert time.monotonic() - began < AT_ONCE_S
        assert was_cut_off(load)


def test_sigterm_ends_within_the_time_of_every_command_though_a_load_hangs():
    with process("hangs") as (url, started), ThreadPoolExecutor() as pool:
        load = pool.submit(ask, url)
        await_load(started)
        began = time.monotonic()
        started.send_signal(signal.SIGTERM)
        assert started.wait(DEADLINE_S) in (signal.SIGTERM, TERMINATED)
        assert time.monotonic() - began < 15
        assert was_cut_off(load)


def was_cut_off(load: Future[httpx.Response]) -> bool:
    """Whether a load has no answer, or an error: a busy machine has the time to say so to the client."""
    return load.exception(DEADLINE_S) is not None or load.result().status_code == 500


def await_load(started: subprocess.Popen[str]) -> None:
    """Wait until the catalog was asked: before that, an end might find no load that runs."""
    assert started.stdout is not None
    assert started.stdout.readline() == "arrived\n"


# -- TLS ----------------------------------------------------------------------------------------------------------


def test_tls_serves_clients_that_trust_the_authority_and_no_others(catalog: MemoryCatalog, tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    tls = Tls.of(pair.certificate, pair.key)
    with served(catalog, tls=tls) as (url, _):
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(authority.root))
        assert ask(url, verify=trusting).status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(url, verify=ssl.create_default_context())
        with pytest.raises(httpx.HTTPError):
            ask(url.replace("https", "http"))
        old = ssl.create_default_context(cafile=str(authority.root))
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert ask(url, verify=old).status_code == 200


def test_files_that_are_no_certificate_are_wrong_usage(tmp_path: Path):
    one, other = Authority(tmp_path / "a").sign("one"), Authority(tmp_path / "b").sign("other")
    (tmp_path / "empty").touch()
    for certificate, key in ((one.certificate, other.key), (tmp_path / "none", one.key), (tmp_path / "empty", one.key)):
        with pytest.raises(UsageError, match="PEM"):
            Tls.of(certificate, key)


def test_a_key_with_a_password_is_refused_without_a_question_on_the_terminal(tmp_path: Path):
    from cryptography.hazmat.primitives import serialization as forms

    pair = Authority(tmp_path).sign("server")
    key = forms.load_pem_private_key(pair.key.read_bytes(), None)
    locked = forms.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, locked))
    with pytest.raises(UsageError, match="without a password"):
        Tls.of(pair.certificate, pair.key)


def test_a_renewed_certificate_is_served_without_a_restart(catalog: MemoryCatalog, tmp_path: Path):
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    pair, renewed = old.sign("server"), new.sign("server")
    tls = Tls.of(pair.certificate, pair.key)
    files = CertificateFiles(tls, every_s=0.0)
    with served(catalog, tls=tls) as (url, _):
        pair.certificate.write_bytes(b"half of a file")
        with capture_logs() as logged:
            files.look()
            assert ask(url, verify=ssl.create_default_context(cafile=str(old.root))).status_code == 200
            pair.key.write_bytes(renewed.key.read_bytes())
            pair.certificate.write_bytes(renewed.certificate.read_bytes())
            files.look()
            files.look()
        assert [one["event"] for one in logged if one["event"].startswith("serve.c")] == [
            "serve.certificate_refused",
            "serve.certificate_renewed",
        ]
        assert ask(url, verify=ssl.create_default_context(cafile=str(new.root))).status_code == 200
