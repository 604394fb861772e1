"""PySpark is imported by one thread, before there are others: its circular imports break under two."""

import subprocess
import sys
import textwrap


def _run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_has_imported_it_when_its_threads_begin():
    _run("""
        import sys
        from pathlib import Path
        from harness_pipelines.app.installation import Stores
        from harness_pipelines.spec.settings import Settings
        assert "pyspark" not in sys.modules, "commands that need no Spark do not wait for its import"
        Stores(Settings(home=Path("unused"))).engine.check([], tasks=True)  # as a worker asks first
        assert "pyspark.sql.functions" in sys.modules
    """)


def test_an_interrupt_that_comes_before_any_work_does_not_import_it():
    _run("""
        import sys
        from pathlib import Path
        from harness_pipelines.spec.settings import Settings
        from harness_pipelines.engines.spark.sessions import SparkSessions
        SparkSessions(Settings(home=Path("unused"))).interrupt()
        assert "pyspark" not in sys.modules
    """)
