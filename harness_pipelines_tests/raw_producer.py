"""Records that the Python client cannot write: names of headers are bytes, of any kind. By librdkafka's own functions.

`confluent_kafka` takes a header's name as text. Other clients do not, and records of theirs have to be read.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

from harness_pipelines.spec.settings import Settings

_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 0, 1, 3, 4, 7, 9  # rd_kafka_vtype_t
_COPY = 2
_ERROR_BYTES = 512


def produce_with_header(settings: Settings, topic: str, value: bytes, *, name: bytes, partition: int = 0) -> None:
    """Produce one record with one header called *name*, which has no zero byte, and wait until it is there."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    for key, word in {"bootstrap.servers": settings.kafka or "", **settings.kafka_properties}.items():
        done = library.rd_kafka_conf_set(conf, key.encode(), word.encode(), error, ctypes.c_size_t(_ERROR_BYTES))
        assert done == 0, error.value
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, error, ctypes.c_size_t(_ERROR_BYTES)))
    assert producer, error.value
    try:
        failed = library.rd_kafka_producev(
            producer,
            ctypes.c_int(_TOPIC), topic.encode(),
            ctypes.c_int(_PARTITION), ctypes.c_int32(partition),
            ctypes.c_int(_VALUE), value, ctypes.c_size_t(len(value)),
            ctypes.c_int(_FLAGS), ctypes.c_int(_COPY),
            ctypes.c_int(_HEADER), name, b"x", ctypes.c_ssize_t(1),
            ctypes.c_int(_END),
        )  # fmt: skip
        assert failed == 0, f"producev: {failed}"
        assert library.rd_kafka_flush(producer, ctypes.c_int(30_000)) == 0
    finally:
        library.rd_kafka_destroy(producer)
