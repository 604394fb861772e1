"""One spelling for every path."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.locations import folder_of, is_below, local_path, normal, warehouse_location
from harness_pipelines.spec.settings import Settings

NAMES = st.text("abü ñ日=-_.'\"()+&@:~,", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
FRONTS = st.sampled_from(["", "file:", "file:/", "file://", "FILE:", "file://localhost", "File://localhost"])
BETWEEN = st.sampled_from(["/", "//", "///", "/./", "/.//", "/x/../", "/./y/.././"])
ENDS = st.sampled_from(["", "/", "//", "/.", "/./"])


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A location, and the names that it has."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4))
    path = "".join(draw(BETWEEN) + name for name in names)
    return draw(FRONTS) + path + draw(ENDS), names


@given(spelled())
def test_all_spellings_of_a_file_have_one_normal_form(one: tuple[str, list[str]]):
    location, names = one
    plain = "file:///" + "/".join(names)

    assert normal(location) == plain
    assert normal(normal(location)) == plain
    assert local_path(plain) == "/" + "/".join(names)
    assert os.path.normpath(local_path(location) or "").lstrip("/") == "/".join(names)


@given(spelled())
def test_a_warehouse_is_named_so_that_iceberg_finds_the_folder_that_is_meant(one: tuple[str, list[str]]):
    location, names = one
    assume(not re.match(r"(?i)file://(?!localhost)[^/]", location))  # it names another machine
    found = warehouse_location(location)

    scheme, _, path = PyArrowFileIO.parse_location(found)
    assert (scheme, path) == ("file", "/" + "/".join(names))
    assert Settings(home=Path("/h"), warehouse=location).warehouse == found == warehouse_location(found)


@pytest.mark.parametrize("odd", ["/a%20b", "file:///a%C3%BC", "/a#b", "/a?b", "/a\\b", "/a\nb", "s3://b/a%20b"])
def test_what_engines_read_differently_is_no_warehouse(odd: str):
    with pytest.raises(UsageError, match="HARNESS_WAREHOUSE .* with which engines find different folders"):
        Settings.from_env({"HARNESS_WAREHOUSE": odd})


@pytest.mark.parametrize("odd", ["file://host/lake", "/", "file:///", "s3:", "s3://", "s3:///lake"])
def test_what_is_no_folder_is_no_warehouse(odd: str):
    with pytest.raises(UsageError, match="HARNESS_WAREHOUSE"):
        warehouse_location(odd)


def test_a_relative_warehouse_is_one_of_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert warehouse_location("lake") == warehouse_location("./x/../lake/") == f"file://{tmp_path}/lake"


def test_an_object_store_has_no_two_spellings_of_a_key_but_a_warehouse_has_the_plain_one():
    assert normal("s3://b//x") != normal("s3://b/x")
    assert warehouse_location("s3://b//x/./y/") == "s3://b/x/y"
    assert warehouse_location("s3://b/") == "s3://b"


def test_the_folder_of_a_view_ends_at_the_last_metadata_of_its_path():
    assert folder_of("file:/lake/metadata/t-1/metadata/0.metadata.json") == "file:///lake/metadata/t-1"


def test_a_folder_whose_name_goes_on_is_not_below():
    assert is_below("file:///lake/t/x", "file:///lake/t")
    assert not is_below("file:///lake/t2/x", "file:///lake/t")
    assert not is_below("file:///lake/t", "file:///lake/t")
