"""A token is text that comes back as it was, and refuses what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.streams import StreamToken, TokenUnfit, check_offsets

offsets = st.dictionaries(st.integers(-3, 200), st.integers(0, 2**63 - 1))


@given(topic_id=st.text(), offsets=offsets, in_state=st.booleans(), version=st.none() | st.integers(1))
def test_a_token_comes_back_as_it_was_and_is_one_line(
    topic_id: str, offsets: dict[int, int], in_state: bool, version: int | None
):
    token = StreamToken(topic_id=topic_id, offsets=offsets, in_state=in_state, version=version)
    assert StreamToken.parse(token.text()) == token
    assert "\n" not in token.text()
    assert token.text().startswith("{")


def test_a_token_from_before_there_were_corrections_is_one():
    token = StreamToken.parse('{"topic_id":"t","offsets":{"0":7},"in_state":false}')
    assert token == StreamToken(topic_id="t", offsets={0: 7})


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "7", "null", '{"topic_id":"t","offsets":[1],"in_state":false}'])
def test_what_is_no_token_is_named(text: str):
    with pytest.raises(TokenUnfit, match="is not a token"):
        StreamToken.parse(text)


def test_a_stream_begins_in_partitions_that_are_there_and_not_below_their_start():
    bounds = {0: Bounds.at(5), 2: Bounds.at(0)}
    check_offsets("shop.orders", {0: 5, 2: 9}, bounds)
    with pytest.raises(UsageError, match="has no partition 1; its partitions: 0, 2"):
        check_offsets("shop.orders", {1: 0}, bounds)
    with pytest.raises(UsageError, match="partition 0 begins at offset 5"):
        check_offsets("shop.orders", {0: 4}, bounds)
