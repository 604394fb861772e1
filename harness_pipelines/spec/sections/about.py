"""What a spec says about a table to people: descriptions, owners and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from harness_pipelines.spec.types import unstorable
from harness_pipelines.spec.wording import quote

DESCRIPTION_CHARS_MAX = 2_000
OWNERS_MAX, TAGS_MAX = 16, 32
#: Dagster's rules, which are stricter than those of the other systems that show owners and tags.
_OWNER = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}|team:[A-Za-z0-9][A-Za-z0-9 ._/-]{0,99}")
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_TAKEN = ("harness/", "dagster/")


def described(value: Any) -> str | None:
    """A description without spaces around it; None for an empty one. Raises: ValueError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"write text, in quotes where YAML reads something else, not {quote(value)}")
    if len(value) > DESCRIPTION_CHARS_MAX:
        raise ValueError(f"a description has at most {DESCRIPTION_CHARS_MAX:,} characters, not {len(value):,}")
    if (why := unstorable(value)) is not None:
        raise ValueError(f"the text holds {why}, which no tier can store")
    return value.strip() or None


def _owners(value: Any) -> Any:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise ValueError(f"write a list such as [ada@example.com, 'team:shop'], not {quote(value)}")
    for one in found:
        if not isinstance(one, str) or not _OWNER.fullmatch(one):
            raise ValueError(f"{quote(one)} is no owner; write an address such as ada@example.com, or team:NAME")
    return tuple(dict.fromkeys(found))


def _tags(value: Any) -> Any:
    pairs = dict(value) if isinstance(value, tuple) else value
    if not isinstance(pairs, Mapping):
        raise ValueError(f"write names with values such as {{tier: gold}}, not {quote(value)}")
    for name, text in pairs.items():
        if not isinstance(name, str) or not _TAG.fullmatch(name):
            raise ValueError(f"{quote(name)} is no tag; use 1 to 63 of A-Z, a-z, 0-9, `_`, `.` and `-`")
        if name.startswith(_TAKEN):
            raise ValueError(f"{quote(name)} is taken; tags that begin with {' or '.join(_TAKEN)} are set by others")
        if not isinstance(text, str) or not _TAG_VALUE.fullmatch(text):
            raise ValueError(
                f"{name}: {quote(text)} is no value of a tag; write text, in quotes where YAML reads something else, "
                "of at most 63 of A-Z, a-z, 0-9, `_`, `.` and `-`"
            )
    return tuple(pairs.items())


Description = Annotated[
    str | None,
    BeforeValidator(described),
    Field(description="Meaning, for people: engines, catalogs, Dagster and dbt show it.", examples=["Net, in euros"]),
]
Owners = Annotated[
    tuple[str, ...],
    Field(max_length=OWNERS_MAX),
    BeforeValidator(_owners, json_schema_input_type=str | Annotated[list[str], Field(max_length=OWNERS_MAX)]),
    Field(
        description="Who answers for the table, in Dagster, dbt and Iceberg's properties: addresses, or team:NAME.",
        examples=[["ada@example.com", "team:shop"]],
    ),
]
Tags = Annotated[
    tuple[tuple[str, str], ...],
    Field(max_length=TAGS_MAX),
    BeforeValidator(_tags),
    PlainSerializer(dict),
    WithJsonSchema({
        "type": "object",
        "maxProperties": TAGS_MAX,
        "propertyNames": {"pattern": f"^{_TAG.pattern}$"},
        "additionalProperties": {"type": "string", "pattern": f"^{_TAG_VALUE.pattern}$"},
    }),
    Field(description="Names with values, in Dagster, dbt and Iceberg's properties.", examples=[{"tier": "gold"}]),
]  # fmt: skip
