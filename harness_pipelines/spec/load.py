"""Specs from and to text; errors name the file, the line and the allowed settings."""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from harness_pipelines.errors import HarnessError
from harness_pipelines.files import Unreadable, read_text
from harness_pipelines.spec.columns import Column, ColumnWords
from harness_pipelines.spec.quantities import WRITTEN
from harness_pipelines.spec.sections.catalogs import CatalogSpec
from harness_pipelines.spec.sections.contract import ColumnChecks, never_holds
from harness_pipelines.spec.sections.formats import SCHEMA_CHARS_MAX, GivenSchema
from harness_pipelines.spec.sections.keys import never_fires
from harness_pipelines.spec.sources import UNAVAILABLE_FORM
from harness_pipelines.spec.table import TableSpec, reserved_words
from harness_pipelines.spec.types import TypeSpecError, parse_type
from harness_pipelines.spec.wording import (
    Place,
    SpecError,
    SpecProblem,
    dotted,
    nearest,
    odd_letter,
    quote,
    shortened,
    shown,
)
from harness_pipelines.spec.yaml_reader import AS_WRITTEN, Reader

SPEC_BYTES_MAX = 8 * 2**20  #: room for two schemas and thousands of columns
_NO_SETTINGS = frozenset({"model_type", "model_attributes_type"})  #: pydantic's, of a value that has no settings
#: Settings by the names that other systems have for them.
_ELSEWHERE: Mapping[type[BaseModel], Mapping[str, str]] = {
    TableSpec: {
        "name": "table", "fields": "columns", "primary_key": "key", "primary_keys": "key", "offset": "start",
        "partition_by": "layout", "cluster_by": "layout", "sort_by": "layout", "order_by": "layout",
    },
    CatalogSpec: {"kind": "type", "url": "uri", "address": "uri", "views": "tables"},
    ColumnWords: {"nullable": "required", "not_null": "required", "optional": "required"},
    ColumnChecks: {
        "min": "ge", "minimum": "ge", "max": "le", "maximum": "le", "regex": "matches", "pattern": "matches",
        "in": "isin", "enum": "isin", "values": "isin", "not_in": "notin", "required": "not_null",
    },
}  # fmt: skip


_EXAMPLES = {
    "table": "namespace.name", "columns": "{order_id: long, note: string}", "values": "[d]",
}  # fmt: skip

#: What a text must be that does not have the form; for patterns that people cannot read.
_PATTERNS = {
    UNAVAILABLE_FORM: "is not of ASCII's letters, digits and signs; write it without blanks, quotes and backslashes",
}


def load_spec(path: str | Path) -> TableSpec:
    """Read a YAML (or JSON) file. Raises: SpecError."""
    try:
        text = read_text(path, SPEC_BYTES_MAX)
    except Unreadable as error:
        raise SpecError.whole(str(path), f"the spec {error}") from error
    return load_spec_text(text, source=str(path), folder=Path(path).parent)


def load_spec_text(text: str, *, source: str = "<text>", folder: Path | None = None) -> TableSpec:
    """Read a spec from YAML (or JSON) text; *source* stands for the file in messages, files lie beside *folder*.

    Raises: SpecError.
    """
    reader = Reader()
    words = reader.read(text, source)
    problems = reader.problems
    if problems and not isinstance(words, dict):
        raise SpecError(source, problems)
    if not isinstance(words, dict):
        raise SpecError.whole(source, _no_spec(words), line=1)
    problems += _read_schemas(words, reader, folder or Path())
    reserved = reserved_words({word: value for word, value in words.items() if value is not None})
    problems += [SpecProblem(line=reader.line((word,)), field=word, message=why) for word, why in reserved.items()]
    try:
        spec = TableSpec.inside({word: value for word, value in words.items() if word not in reserved})
    except ValidationError as error:
        problems += problems_of(error, words, reader)
    if problems:
        raise SpecError(source, problems)
    check_rules(spec, source=source, reader=reader)
    return spec


def read_back(words: Any, *, source: str) -> TableSpec:
    """The spec of words that a ledger kept or a change made; *source* stands for them in messages.

    Raises: SpecError, in the words of a spec and without lines.
    """
    try:
        return TableSpec.inside(words)
    except ValidationError as error:
        raise SpecError(source, problems_of(error, words)) from error


def check_rules(spec: TableSpec, *, source: str, reader: Reader | None = None) -> None:
    """Tables that are there keep such rules: they are asked where a spec is applied, not where one is read back.

    Raises: SpecError where no record can be a delete by the rule of *spec*, or pass a column's checks, and where a
    setting does nothing.
    """
    lines = reader or Reader()
    problems = []
    if (why := never_fires(spec)) is not None:
        problems.append(SpecProblem(line=lines.line(("delete", "field")), field="delete", message=why))
    troubles = [(("contract", *trouble.place), trouble.why) for trouble in never_holds(spec)]
    for place, why in [*troubles, *_without_effect(spec)]:
        problems.append(SpecProblem(line=lines.line(place), field=dotted(place), message=why))
    if problems:
        raise SpecError(source, problems)


def _without_effect(spec: TableSpec) -> Iterator[tuple[Place, str]]:
    """Yield the settings that do nothing beside the others, and what to do."""
    if spec.key_format != "json" and not spec.key:
        yield ("key_format",), "record keys are read only if the table has a `key`; add one, or remove `key_format`"
    if spec.unknown_fields != "ignore" and spec.format == "raw":
        yield ("unknown_fields",), "a value of `format: raw` has no fields, so none is unknown; remove it"
    for column, checks in (spec.contract.columns if spec.contract else {}).items():
        if not checks.said:
            yield (
                ("contract", "columns", column),
                "it checks nothing; write a check, such as `not_null: true`, or remove it",
            )


def _read_schemas(words: dict[str, Any], reader: Reader, folder: Path) -> list[SpecProblem]:
    """Put the text of the files that `schema` and `key_schema` name in their places."""
    problems: list[SpecProblem] = []
    for word in ("schema", "key_schema"):
        said = words.get(word)
        if not isinstance(said, dict) or "file" not in said:
            continue
        path, why = folder / str(said["file"]), ""
        text = ""
        if "text" in said:
            why = "write `file` or `text`, not both"
        elif not isinstance(said["file"], str):
            why = f"write the path of a file as text, not {quote(said['file'])}"
        else:
            try:
                text = read_text(path, 4 * SCHEMA_CHARS_MAX)
            except Unreadable as error:
                why = f"{path} {error}"
        if not why and len(text) > SCHEMA_CHARS_MAX:
            why = f"{path} has {len(text):,} characters; at most {SCHEMA_CHARS_MAX:,} are kept"
        if why:
            problems.append(SpecProblem(line=reader.line((word, "file")), field=f"{word}.file", message=why))
            words[word] = None
        else:
            words[word] = {"text": text, **{w: v for w, v in said.items() if w != "file"}}
    return problems


def load_value(text: str) -> Any:
    """A single value as a spec has it: true and false, numbers and null, else text. Raises: SpecError."""
    reader = Reader()
    found = reader.read(text, text)
    if reader.problems:
        raise SpecError(shortened(text), reader.problems)
    return found


def dump_spec(spec: TableSpec) -> dict[str, Any]:
    """The JSON form that the ledger keeps (columns as a list); ``TableSpec.model_validate`` reads it back."""
    return spec.model_dump(mode="json", by_alias=True)


def written_spec(spec: TableSpec) -> dict[str, Any]:
    """Every setting that *spec* has, as a person writes it: ``60s``, ``256MB``, columns as a mapping."""
    words = spec.model_dump(mode="json", by_alias=True, context=WRITTEN)
    return {**_without_none(words), "columns": {column.pop("name"): _short(column) for column in words["columns"]}}


def _short(column: dict[str, Any]) -> str | dict[str, Any]:
    column = {word: value for word, value in column.items() if (word, value) != ("required", False)}
    return column if len(column) > 1 else str(column["type"])


def _without_none(words: Mapping[str, Any]) -> dict[str, Any]:
    return {
        word: _without_none(value) if isinstance(value, Mapping) else value
        for word, value in words.items()
        if value is not None
    }


@contextmanager
def located(path: str | Path) -> Iterator[None]:
    """Add file and line to an error that names a setting of the spec in *path*, which only its use has shown."""
    try:
        yield
    except HarnessError as error:
        if not error.setting:
            raise
        reader = Reader()
        with suppress(Unreadable):  # it is gone by now, or was a pipe: the error has no line then
            reader.read(read_text(path, SPEC_BYTES_MAX), str(path))
        raise type(error)(f"{path}:{reader.line(error.setting)}: {error}") from error


def problems_of(
    error: ValidationError, words: Any, reader: Reader | None = None, *, model: type[BaseModel] = TableSpec
) -> list[SpecProblem]:
    """What pydantic's *error* about *words* of *model* says; with lines if *reader* has read them."""
    given = words if isinstance(words, Mapping) else {}
    errors = [dict(one) for one in error.errors(include_url=False)]
    return [*_Sentences(_Places(model), reader or Reader(), given).about(errors)]


@dataclass(frozen=True, slots=True)
class _Sentences:
    """Says what is wrong with *words* of a model."""

    settings: _Places
    reader: Reader
    words: Mapping[str, Any]

    def about(self, errors: Iterable[Mapping[str, Any]]) -> Iterator[SpecProblem]:
        """Yield the problems, without those that follow from another one."""
        found = [(self._given(place), one) for one in errors if (place := _place_of(one)) is not None]
        extra = [place for place, one in found if one["type"] == "extra_forbidden"]
        meant = {(*place[:-1], self.settings.meant(place)) for place in extra}
        for place, one in found:
            if any(wrong == place[: len(wrong)] for wrong in self.reader.wrong):
                continue  # it has no value because its value was refused
            if one["type"] == "missing" and place in meant:
                continue  # it is there under a misspelt name
            if one["type"] == "too_short" and one["input"]:
                continue  # its entries were refused
            if place == ("topic",) and "topic" not in self.words:
                continue  # it was taken from the table's name, which is refused
            message = self._message(one, place)
            if isinstance(one["input"], str) and _TEMPLATE.search(one["input"]):
                message = f"{message}; {AS_WRITTEN}"
            yield SpecProblem(line=self.reader.line(place), field=dotted(place), message=message)

    def _given(self, place: Place) -> Place:
        """Where the value of *place* was written: a single one of `topics` is the topic."""
        is_one_of_several = place == ("topic",) and "topic" not in self.words and "topics" in self.words
        return ("topics",) if is_one_of_several else place

    def _message(self, error: Mapping[str, Any], place: Place) -> str:
        """pydantic's error in the words of a spec."""
        kind, given = error["type"], error["input"]
        found = quote(given)
        match kind:
            case "extra_forbidden":
                return self._unknown_setting(place, given)
            case "missing":
                if len(place) == 1 and place[0] in self.words:
                    return f"`{place[-1]}` has no value; indent what belongs to it below it"
                if len(place) > 1 and self.settings.model_at(place[:-1]) is GivenSchema:
                    return "`file` or `text` is missing"
                return f"`{place[-1]}` is missing" + (_as_struct(given) or self._example(place))
            case "value_error":
                return str(error["ctx"]["error"])
            case "column":
                return str(error["msg"])
            case "literal_error":
                allowed = re.findall(r"'([^']*)'", error["ctx"]["expected"]) or [error["ctx"]["expected"]]
                near = nearest(given, allowed) if isinstance(given, str) else None
                return f"{found} is not allowed{_did_you_mean(near)}; allowed: {', '.join(allowed)}"
            case _ if kind in _NO_SETTINGS and not place and self.settings.root is TableSpec:
                return _no_spec(given)
            case _ if kind in _NO_SETTINGS:
                allowed = self.settings.words_at(place)
                example = f", such as {{file: {given}}}" if "file" in allowed and isinstance(given, str) else ""
                return (
                    f"write settings{' below it' if place else ''}{example}, not {found}; allowed: {', '.join(allowed)}"
                )
        if given is None:
            return "it has no value; write one, or remove the setting"
        if kind == "string_pattern_mismatch":
            examples = (self.settings.field_at(place) or FieldInfo()).examples or []
            such = f" of {examples[0]}," if examples else ""
            said = _PATTERNS.get(error["ctx"]["pattern"])
            return f"{found} {said}" if said else f"{found} does not have the form{such} {error['ctx']['pattern']}"
        return _of_value(kind, given, error.get("ctx", {})) or f"{error['msg']}, found {found}"

    def _unknown_setting(self, place: Place, given: Any) -> str:
        word, above = str(place[-1]), place[:-1]
        if place in self.reader.bare:
            return f"`{word}` has no value; a list stands in brackets, such as [a, b], and a number has no commas"
        allowed = self.settings.words_at(above)
        listed = f"; allowed: {', '.join(allowed)}"
        is_of_table = above and self.settings.root is TableSpec and self.settings.meant(place) is None
        if is_of_table and word in (top := self.settings.words_at(())):
            return f"unknown setting `{word}`; it is a setting of the table: indent it as `{top[0]}`{listed}"
        near = _did_you_mean(self.settings.meant(place))
        homes = [] if near or above else [home for home, words in self.settings.sections().items() if word in words]
        belongs = f"; write it below `{'` or `'.join(homes)}`" if homes else ""
        return f"unknown setting `{word}`{near}{belongs}{odd_letter(word)}{listed}"

    def _example(self, place: Place) -> str:
        """How a setting that a spec must have is written."""
        field = self.settings.field_at(place)
        if (
            allowed := re.findall(r"'([^']*)'", str(field.annotation))
            if field and "Literal[" in str(field.annotation)
            else []
        ):
            return f"; allowed: {', '.join(allowed)}"
        example = _EXAMPLES.get(str(place[-1])) if len(place) == 1 or place[-1] == "values" else None
        example = (field.examples or [example])[0] if field else example
        return f"; write `{place[-1]}: {example}`" if example else ""


def _place_of(error: Mapping[str, Any]) -> Place | None:
    """The place of an error of pydantic's; None for the branch of text or settings that the value did not mean."""
    place = tuple(error["loc"])
    branch = next((at for at, part in enumerate(place) if isinstance(part, str) and "[_" in part), None)
    if branch is not None:
        return (*place[:branch], *place[branch + 1 :]) if error["type"] not in _NO_SETTINGS else None
    if error["type"] == "string_type" and place[-1:] == ("str",):
        return None if isinstance(error["input"], dict) else place[:-1]
    return place


_TEMPLATE = re.compile(r"\$\{|\{\{|\{%|<%|\$\(|^\$\w")  #: of shells, Jinja and Helm, ERB


def _no_spec(given: Any) -> str:
    if given is None:
        return "the spec is empty; it starts with `table: namespace.name`"
    return f"a spec is a mapping of settings, such as `table: namespace.name`, not {quote(given)}"


def _of_value(kind: str, given: Any, limits: Mapping[str, Any]) -> str | None:
    """Say what a value should be instead; None for an unknown *kind* of pydantic's errors."""
    found = quote(given)
    said = {
        "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
        "float_type": "a number", "float_parsing": "a number", "finite_number": "a number",
        "bool_type": "true or false", "bool_parsing": "true or false", "string_type": "text", "tuple_type": "a list",
        "list_type": "a list", "dict_type": "names with their values", "mapping_type": "names with their values",
    }  # fmt: skip
    if kind in said:
        return f"write {said[kind]}{_rewritten(said[kind], given)}, not {found}"
    if kind.startswith(("datetime_", "timezone_")):
        lacks = "has no time zone" if kind == "timezone_aware" else "is not a time"
        return f"{found} {lacks}; write one such as 2026-01-01T00:00:00Z"
    bounds = {
        "greater_than_equal": ("ge", "of at least"), "greater_than": ("gt", "above"),
        "less_than_equal": ("le", "of at most"),
        "less_than": ("lt", "below"), "too_long": ("max_length", "at most"), "too_short": ("min_length", "at least"),
        "string_too_long": ("max_length", "at most"), "string_too_short": ("min_length", "at least"),
    }  # fmt: skip
    if kind not in bounds:
        return None
    word, bound = bounds[kind]
    if kind.endswith(("long", "short")):
        what = "characters" if kind.startswith("string") else "entries" if limits[word] > 1 else "entry"
        return f"write {bound} {limits[word]:,} {what}, not {len(given):,}"
    return (
        f"write a number {bound} {limits[word]:,g}, not {found}"
        if abs(limits[word]) < 10**6
        else (f"write a number {bound} {limits[word]:,}, not {found}")
    )


def _rewritten(wanted: str, given: Any) -> str:
    """The value as it would be accepted, where only its form is wrong."""
    if wanted == "a whole number" and isinstance(given, str):
        if re.fullmatch(r"[1-9]\d{0,17}", given):
            return f" without quotes: {given}"
        if re.fullmatch(r"0+[1-9]\d*", given):
            return " without zeros in front"
        if re.fullmatch(r"0(?:[xX][0-9a-fA-F]{1,15}|[oO][0-7]{1,20}|[bB][01]{1,60})", given):
            return f" in decimal digits: {int(given, 0)}"
    if wanted == "true or false" and isinstance(given, str) and given.lower() in ("true", "false"):
        return f" without quotes: {given.lower()}"
    if wanted == "text" and isinstance(given, int | float):
        return f" in quotes: '{shown(given)}'"
    if wanted == "a list":
        return f": [{quote(given)}]" if isinstance(given, str | dict) else ", such as [a, b]"
    return ""


def _did_you_mean(near: str | None) -> str:
    return f" (did you mean `{near}`?)" if near else ""


def _as_struct(given: Any) -> str:
    """The way on where a column of fields was written as YAML writes mappings."""
    if not isinstance(given, dict) or not given:
        return ""
    try:
        struct = parse_type("struct<" + ", ".join(f"{name}: {type_}" for name, type_ in given.items()) + ">")
    except TypeSpecError:
        return ""
    return f"; a struct is written as one text: '{shortened(str(struct))}'"


@dataclass(frozen=True, slots=True)
class _Places:
    """The settings that a model has at its places."""

    root: type[BaseModel]

    def words_at(self, place: Place) -> list[str]:
        """The settings directly below *place*; none where there are free names, or no settings."""
        words = _words_of(self.model_at(place))
        return words[1:] if self.root is GivenSchema else words  # Python code reads the file itself

    def sections(self) -> dict[str, list[str]]:
        """The settings that have settings below them, with those."""
        named = {field.alias or name: _below(field.annotation) for name, field in self.root.model_fields.items()}
        return {name: _words_of(found[0]) for name, found in named.items() if found and not found[1]}

    def meant(self, place: Place) -> str | None:
        """The setting that an unknown one probably means."""
        model, word = self.model_at(place[:-1]), str(place[-1])
        elsewhere = _ELSEWHERE.get(model, {}) if model else {}
        return elsewhere.get(word.lower().replace("-", "_")) or nearest(word, _words_of(model))

    def model_at(self, place: Place) -> type[BaseModel] | None:
        """The model of the settings directly below *place*; None where there are none, or free names."""
        model, rest = self.root, [*place]
        while rest:
            field = _field_of(model, rest.pop(0))
            if field is None or (found := _below(field.annotation)) is None:
                return None
            model, has_names = found
            if has_names and not rest:
                return None
            rest = rest[1:] if has_names else rest
        return model

    def field_at(self, place: Place) -> FieldInfo | None:
        model = self.model_at(place[:-1])
        return _field_of(model, place[-1]) if model else None


def _words_of(model: type[BaseModel] | None) -> list[str]:
    words = [field.alias or name for name, field in model.model_fields.items()] if model else []
    return ["file", *words] if model is GivenSchema else words


def _field_of(model: type[BaseModel], word: str | int) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if word in (field.alias, name)), None)


def _below(annotation: Any) -> tuple[Any, bool] | None:
    """The model in *annotation*, and whether a name or a position stands before its settings."""
    if annotation is Column:
        return ColumnWords, False
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        if found := _below(inner):
            return found[0], found[1] or getattr(annotation, "__origin__", None) in (tuple, dict, abc.Mapping)
    return None
