"""JSON with a schema: like plain JSON, for values that the schema allows. jsonschema-rs validates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa

from harness_pipelines.extras import needs
from harness_pipelines.formats.base import Codec, Decoded, Reason, Refused
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import DETAIL_CHARS, depth, malformed, refusal
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.schema.writer_schema import NoFit

with needs("formats", "A format with a schema"):
    import jsonschema_rs

BACKTRACKS_MAX = 20_000  #: of a pattern on one text: a millisecond, in which no other thread of the process runs
STEPS_MAX = 100_000  #: schemas that one value is held against at once, by ``allOf``, ``$ref`` and their like
TOLD_MAX = 10_000  #: schemas that a value and its parts are held against where the error is put into words
_DEPTH_MAX = 64  #: nested deeper, one that multiplies is beyond all limits
_any_json = msgspec.json.Decoder().decode
#: Words whose schemas are asked of the same value, not of a part of it.
_ONE, _SOME, _NAMED = ("not", "if", "then", "else"), ("allOf", "anyOf", "oneOf"), ("dependentSchemas", "dependencies")
#: Words whose schemas are asked of parts.
_ONE_PART = ("additionalItems", "additionalProperties", "contains", "items", "propertyNames", "unevaluatedItems",
             "unevaluatedProperties")  # fmt: skip
_SOME_PARTS, _NAMED_PARTS = ("items", "prefixItems"), ("properties", "patternProperties")
_NOT_FOLLOWED = frozenset({"$dynamicRef", "$recursiveRef"})


class JsonSchemaCodec:
    """`Codec` that refuses what its schema does not allow (``schema_violation``), after what *codec* refuses.

    Nothing is fetched: a ``$ref`` leads into the schema, or to a reference by its name.
    """

    def __init__(self, schema: WrittenSchema, codec: Codec) -> None:
        """Raises: NoFit (unusable_schema)."""
        self._codec = codec
        try:
            others = [(name, msgspec.json.decode(text)) for name, text in schema.references.items()]
            registry = jsonschema_rs.Registry(others) if others else None
            found: Any = msgspec.json.decode(schema.text)
            self._steps = _Steps(found, dict(others))
            if self._steps.of(found) > STEPS_MAX:
                raise ValueError(f"a value would be held against more than {STEPS_MAX:,} schemas, by its references")
            self._validator = jsonschema_rs.validator_for(
                found,
                registry=registry,
                retriever=_nothing,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX),
            )
        except (ValueError, TypeError, RecursionError, msgspec.DecodeError, jsonschema_rs.ReferencingError) as error:
            no_json = malformed(schema.text.encode(errors="surrogatepass")) if _is_no_json(error) else None
            why = no_json.detail if no_json else " ".join(str(error).split())[:DETAIL_CHARS]
            raise NoFit(f"no JSON Schema that can be used: {why}", reason=Reason.UNUSABLE_SCHEMA) from error

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        decoded = self._codec.decode(values)
        wrong = [one for i in decoded.accepted.tolist() if (one := self._violation(i, values[i]))]
        if not wrong:
            return decoded
        refused = {one.index for one in wrong}
        keep = np.array([i not in refused for i in decoded.accepted.tolist()], np.bool_)
        return Decoded(
            rows=decoded.rows.filter(pa.array(keep)),
            accepted=decoded.accepted[keep],
            refused=sorted([*decoded.refused, *wrong], key=lambda one: one.index),
        )

    def _violation(self, index: int, value: bytes | None) -> Refused | None:
        assert value is not None, "the codec refuses what is missing"
        try:
            found = _any_json(value)
            if self._validator.is_valid(found):
                return None
            if self._steps.within(min(depth(value), _DEPTH_MAX)) > TOLD_MAX:
                return refusal(index, _UNTOLD)
            error = next(iter(self._validator.iter_errors(found)))
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as wrong:
            # A number beyond 64 bits, or a pattern that takes too long: it is unknown whether the schema allows it.
            why = " ".join(str(wrong).split()) or type(wrong).__name__
            return refusal(index, Unfit(Reason.SCHEMA_VIOLATION, f"the schema cannot be asked: {why}"))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        where = f"`{path.removeprefix('.')}`: " if path else ""
        return refusal(index, Unfit(Reason.SCHEMA_VIOLATION, where + " ".join(error.message.split())))


_UNTOLD = Unfit(
    Reason.SCHEMA_VIOLATION,
    "the schema does not allow the value; which part of it, its references take too long to tell",
)


class _Steps:
    """Counts how many schemas a value is held against. Each reference may double it, so 40 never end.

    A reference that leads nowhere known counts for one at once: the validator says what is wrong with it.
    """

    def __init__(self, root: Any, others: dict[str, Any]) -> None:
        self._root, self._others = root, others
        self._known: dict[int, int] = {}  #: by the schema's place in memory; 0 while it is being counted
        self._deep: dict[tuple[int, int], int] = {}  #: the same by the depth of the value too

    def of(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        if id(schema) not in self._known:
            self._known[id(schema)] = 0  # it may lead back to itself, where the validator stops
            self._known[id(schema)] = 1 + sum(map(self.of, self._asked(schema)))
        return self._known[id(schema)]

    def within(self, depth: int) -> int:
        """How many a value that is nested *depth* deep, and its parts, are held against, up to a little over a limit.

        The validator asks each schema of a part once, but it makes an error of each way that leads there.
        """
        try:
            return max(
                self._within(self._root, level) for level in range(depth + 1)
            )  # from below: it calls itself less
        except RecursionError:
            return TOLD_MAX + 1

    def _within(self, schema: Any, depth: int) -> int:
        if not isinstance(schema, dict):
            return 1
        if (known := self._deep.get((id(schema), depth))) is not None:
            return known
        self._deep[id(schema), depth] = 0
        count = 1 + sum(self._within(one, depth) for one in self._asked(schema))
        if not _NOT_FOLLOWED.isdisjoint(schema) or not self._is_followed(schema.get("$ref")):
            count = TOLD_MAX + 1
        if depth:
            count += sum(self._within(one, depth - 1) for one in _parts(schema))
        self._deep[id(schema), depth] = min(count, TOLD_MAX + 1)
        return self._deep[id(schema), depth]

    def _is_followed(self, reference: Any) -> bool:
        """Whether *reference* is a path from a known schema; a name within one, or an address, may lead anywhere."""
        return not isinstance(reference, str) or isinstance(self._at(reference), dict | bool)

    def _asked(self, schema: dict[str, Any]) -> Iterator[Any]:
        yield from (schema[word] for word in _ONE if word in schema)
        for word in _SOME:
            yield from found if isinstance(found := schema.get(word), list) else ()
        for word in _NAMED:
            yield from found.values() if isinstance(found := schema.get(word), dict) else ()
        if isinstance(reference := schema.get("$ref"), str):
            yield self._at(reference)

    def _at(self, reference: str) -> Any:
        """What *reference* leads to, by the path below a ``#``."""
        name, _, path = reference.partition("#")
        if path and not path.startswith("/"):
            return None
        place: Any = self._others.get(name) if name else self._root
        for written in unquote(path).split("/")[1:]:
            part = written.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict):
                place = place.get(part)
            elif isinstance(place, list) and part.isdecimal() and int(part) < len(place):
                place = place[int(part)]
            else:
                return None
        return place


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    yield from (schema[word] for word in _ONE_PART if isinstance(schema.get(word), dict))
    for word in _SOME_PARTS:
        yield from found if isinstance(found := schema.get(word), list) else ()
    for word in _NAMED_PARTS:
        yield from found.values() if isinstance(found := schema.get(word), dict) else ()


def _is_no_json(error: Exception) -> bool:
    return isinstance(error, msgspec.DecodeError | UnicodeError)


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is no reference of the schema, and nothing is fetched")
