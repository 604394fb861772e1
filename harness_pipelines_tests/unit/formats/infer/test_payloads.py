"""The types of well-known payloads are those that a person would choose, and take every payload."""

from __future__ import annotations

import json

import pytest

from harness_pipelines.formats.infer.proposal import Proposal, propose
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.infer.payloads import PAYLOADS


def chosen(found: Proposal) -> dict[str, str]:
    """By column its type, and how it is written behind a space."""
    columns = [one.column for one in found.fields.columns]
    return {c.name: f"{c.type} {c.source}" if c.source else str(c.type) for c in columns}


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_columns_are_those_that_a_person_would_choose(name: str):
    payloads, wanted = PAYLOADS[name]
    values = [json.dumps(one).encode() for one in payloads]

    found = propose(values, [None] * len(values), NoSchemas())

    assert found.format == "json"
    assert chosen(found) == wanted


@pytest.mark.parametrize("name", PAYLOADS)
def test_each_payload_is_a_row_of_the_proposed_table(name: str):
    values = [json.dumps(one).encode() for one in PAYLOADS[name][0]]
    columns = {
        one.column.name: {"type": str(one.column.type), "from": one.column.source}
        for one in propose(values, [None] * len(values), NoSchemas()).fields.columns
    }

    decoded = RecordCodec(TableSpec(table="a.b", columns=columns)).decode(values, [None] * len(values))

    assert not decoded.refused
    assert decoded.rows.num_rows == len(values)


def test_digits_that_are_kept_make_a_decimal():
    values = [b'{"list":5.00}', b'{"list":7.25}']

    assert chosen(propose(values, [None, None], NoSchemas())) == {"list": "decimal(18, 2)"}


def test_there_are_enough_payloads():
    assert len(PAYLOADS) >= 30
