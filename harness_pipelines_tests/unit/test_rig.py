"""What the rig promises to the fault tests."""

from __future__ import annotations

import subprocess
import sys

from harness_pipelines_tests.rig import PRELOADED

IMPORTED = "import importlib, os, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
THREADS = "print(*(open(f'/proc/self/task/{task}/comm').read() for task in os.listdir('/proc/self/task')), sep='')"


def test_the_process_that_workers_are_forked_from_has_one_thread():
    ran = subprocess.run(
        [sys.executable, "-c", f"{IMPORTED}; {THREADS}", *PRELOADED], capture_output=True, text=True, check=True
    )
    assert len(ran.stdout.split()) == 1, ran.stdout
