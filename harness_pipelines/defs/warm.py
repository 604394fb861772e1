"""Runs start as forks of a process that has imported everything.

Dagster gives each run a new Python, which spends about three CPU seconds on imports before the run's first step. A code
server has imported the same when it has loaded its definitions. At that moment it forks a process that waits, the
template, and each run is a fork of the template, by the protocol of multiprocessing's fork server. A run still reads
the definitions from the ledger, as one in a new Python does.

A fork copies locks, but not the threads that hold them. So the template is made only of a process with one thread, and
what NumPy and Arrow would start on import is kept from starting. Where that is not so, runs start as Dagster starts
them. If the template dies, the next run starts a fork server in a new Python.
"""

import gc
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from pathlib import Path

DEFINITIONS = "harness_pipelines.defs.definitions"
#: In ``ps -o comm``. Their command line stays that of the code server.
TEMPLATE_NAME, RUN_NAME = "harness-forks", "harness-run"
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
#: What steps import when they begin.
_OF_STEPS = (
    "harness_pipelines.lakes.iceberg.inspect.history",
    "harness_pipelines.lakes.iceberg.reads",
    "harness_pipelines.buffers.postgres.writer",
    "harness_pipelines.sources.joined",
    "harness_pipelines.audit.proof.complete",
)


def quiet() -> None:
    """Keep libraries from starting threads, in a code server of our definitions. Call it before their import."""
    if _is_code_server():
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)


def warm_runs() -> None:
    """Let the runs of this code server start warm; does nothing in another process."""
    if not _is_code_server() or sys.version_info >= (3, 14) or _threads() != 1:
        return
    from harness_pipelines.defs.private import DagsterApiServer

    _fork_template()
    context = multiprocessing.get_context("forkserver")
    # The server that loads these definitions took its own context before; a property of its class comes first.
    setattr(DagsterApiServer, "_mp_ctx", property(lambda _: context, lambda *_: None))  # noqa: B010


def _is_code_server() -> bool:
    """Return whether this process, itself no run, is ``dagster api grpc`` over our definitions."""
    is_first = multiprocessing.parent_process() is None
    return is_first and sys.argv[1:3] == ["api", "grpc"] and DEFINITIONS in sys.argv


def _threads() -> int:
    """Of this process, those of libraries among them; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return 0


def _fork_template() -> None:
    """Fork the template, and name it to multiprocessing as its fork server."""
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"{get_temp_dir()}/runs"  # a folder of this user, removed when the code server ends
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        alive_r, alive_w = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(alive_w)
            _serve(listener.detach(), alive_r)
        os.close(alive_r)
    server = forkserver._forkserver
    for name, value in {"address": address, "alive_fd": alive_w, "pid": pid}.items():
        setattr(server, f"_forkserver_{name}", value)


def _serve(listener: int, alive: int) -> None:
    """Fork runs until the code server is gone. Never returns: what is above it on the stack is the code server's."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a new Python, which runs began with
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _call_this_process(TEMPLATE_NAME)
        os.register_at_fork(after_in_child=partial(_call_this_process, RUN_NAME))
        _import_what_steps_need()
        sys.modules.pop(DEFINITIONS)  # each run loads them as they are then
        if _threads() != 1:
            raise RuntimeError(f"the process that runs would be forks of has {_threads()} threads")
        gc.freeze()  # a collection in a run would copy the pages that it shares with the others
        forkserver.main(listener, alive, [])
        code = 0
    except Exception:  # it must not reach the frames above, which are the code server's: it is shown here
        traceback.print_exc()
        said = "harness: each run of this code server starts in a new Python, some three seconds later than as a fork"
        print(said, file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _call_this_process(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def _import_what_steps_need() -> None:
    """Without Polars, which starts threads: the ADBC driver imports it where it is installed, and does not need it."""
    from harness_pipelines.engines.spark.session import import_pyspark, prepare_connect

    known = "polars" in sys.modules
    if not known:
        sys.modules["polars"] = None  # type: ignore[assignment]
    for name in _OF_STEPS:
        import_module(name)
    with suppress(ImportError):  # an installation without Spark
        import_pyspark()
        prepare_connect()
    if not known:
        del sys.modules["polars"]
