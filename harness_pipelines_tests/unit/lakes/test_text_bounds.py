"""The bounds of texts in a data file: they are cut off, they hold what the file has, and they are texts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from harness_pipelines.lakes.iceberg.parquet import _Model, text_above

LENGTH = 16
PROPERTIES = {"write.metadata.metrics.default": f"truncate({LENGTH})"}


@pytest.mark.parametrize(
    ("text", "above"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ff" + "b", "a" * 15 + "\ue000"),
        ("a" * 14 + "\ud7ff\U0010ffff" + "b", "a" * 14 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "b", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("\U0010ffff" * 16, "\U0010ffff" * 16),
    ],
)
def test_a_bound_is_a_text_above(text: str, above: str | None):
    assert text_above(text, LENGTH) == above


@given(st.text(st.sampled_from("a\ud7fe\ud7ff\ue000\uffff\U0010fffe\U0010ffff"), max_size=5), st.integers(1, 4))
def test_a_bound_is_above_all_that_begin_so(text: str, length: int):
    above = text_above(text, length)
    if above is None:
        assert set(text[:length]) == {"\U0010ffff"}
    else:
        assert above >= text and above.encode() >= text.encode() and len(above) <= length


@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff", "\uffff", "z"])
def test_a_file_with_such_texts_is_written_and_its_bounds_hold_them(last: str, tmp_path: Path):
    texts = ["a" * 15 + last + "more", "b" * 3, "a" * 15 + last]
    schema = Schema(NestedField(1, "s", StringType(), required=False))
    arrow = pa.schema([pa.field("s", pa.large_string(), metadata={b"PARQUET:field_id": b"1"})])
    output = PyArrowFileIO().new_output(f"file://{tmp_path}/one.parquet")
    writer = _Model().create_writer(output, schema, PROPERTIES)
    writer.write(pa.table([pa.array([texts[0], texts[2]], pa.large_string())], schema=arrow))
    told = writer.close().to_serialized_dict()
    assert told["lower_bounds"][1].decode() <= min(texts[0], texts[2])
    upper = told["upper_bounds"].get(1)
    assert upper is not None and upper.decode() >= max(texts[0], texts[2])
