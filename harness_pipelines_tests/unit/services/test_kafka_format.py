"""The embedded Kafka formats an empty folder, never one with records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness_pipelines.services.base import Place
from harness_pipelines.services.errors import ServicesError
from harness_pipelines.services.kafka import Kafka

ZIPS = "from harness_pipelines.engines.spark.tasks import package_zip; print(package_zip(), package_zip(), sep='\\n')"


def test_a_folder_with_records_and_no_meta_properties_is_left_as_it_is(tmp_path: Path):
    log = tmp_path / "kafka" / "data" / "orders-0" / "00000000000000000000.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"records")

    with pytest.raises(ServicesError, match="no meta.properties.*orders-0.*nothing was started or removed"):
        Kafka(Place(home=tmp_path, jars=None)).prepare((1, 2), lambda _: None)

    assert log.read_bytes() == b"records"


def test_the_package_is_zipped_once_per_process_and_gone_with_it():
    said = subprocess.run([sys.executable, "-c", ZIPS], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == said[1]
    assert not Path(said[0]).parent.exists()
