"""Protobuf schemas as text, compiled by protoc in a separate process."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from harness_pipelines.extras import ExtraMissing
from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.schema.writer_schema import NoFit

MAIN = "harness_main.proto"
COMPILE_S_MAX = 60.0
_NO_ERROR = re.compile(r"warning:|^(WARNING|[IWE]\d{4} )", re.IGNORECASE)
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.]+|\s+|.""", re.DOTALL
)  # comments, texts, words, white space, signs
_OF_THE_NAME = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL})
_OPENING, _CLOSING = frozenset("([{<"), frozenset(")]}>")
#: What Confluent's schemas import without referring to it. The numbers and names are those of its registry.
_BUILT_IN = {
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
}


def compiled(text: str, references: Mapping[str, str]) -> bytes:
    """A serialized FileDescriptorSet of *text* (the file `MAIN`) and all that it imports, what is imported first.

    *references*: the text of other files by the names that they are imported by. Raises: NoFit with protoc's message.
    """
    try:
        return _compiled(text, references)
    except NoFit as why:
        plain = {name: without_options(content) for name, content in references.items()}
        if (bare := without_options(text)) == text and plain == references:
            raise
        # An option that is defined otherwise than here keeps protoc from all of the file, and none is ever read.
        try:
            return _compiled(bare, plain)
        except NoFit:
            raise why from None


def _compiled(text: str, references: Mapping[str, str]) -> bytes:
    """Raises: NoFit."""
    with TemporaryDirectory(prefix="harness-") as name:
        folder = Path(name)
        for path, content in {**_BUILT_IN, **references, MAIN: text}.items():
            _write(_inside(folder, path), content)
        made = folder / "harness_descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *_includes()]
        command += ["--include_imports", f"--descriptor_set_out={made}", MAIN]
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=COMPILE_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise _unusable(f"protoc did not end within {COMPILE_S_MAX:g} s") from error
        if done.returncode:
            said = done.stderr.replace(f"{folder}/", "").replace(MAIN, "schema")
            lines = [line for line in said.splitlines() if line.strip() and not _NO_ERROR.search(line)]
            raise _unusable("; ".join(lines)[:300] or f"protoc ended with {done.returncode}")
        return made.read_bytes()


def without_options(text: str) -> str:
    """*text* of a schema without the options that it defines itself, or imports: those with a name in brackets."""
    tokens = _TOKEN.findall(text)
    signs = [i for i, token in enumerate(tokens) if not (token.isspace() or token.startswith(("//", "/*")))]
    kept = set(range(len(tokens)))
    place = 0
    while place < len(signs):
        here = tokens[signs[place]]
        then = tokens[signs[place + 1]] if place + 1 < len(signs) else ""
        if here == "option" and then == "(":
            end = _end_of(tokens, signs, place, {";"})
            kept -= set(range(signs[place], signs[min(end, len(signs) - 1)] + 1))
            place = end
        elif here == "[":
            place = _without_own(tokens, signs, place, kept)
        place += 1
    return "".join(token for i, token in enumerate(tokens) if i in kept)


def _without_own(tokens: list[str], signs: list[int], opened: int, kept: set[int]) -> int:
    """Take such options out of the list that is *opened* at a sign; returns where it ends."""
    at, parts = opened + 1, list[tuple[int, int]]()
    while at < len(signs):
        end = _end_of(tokens, signs, at, {",", "]"})
        parts.append((at, end))
        if end >= len(signs) or tokens[signs[end]] == "]":
            break
        at = end + 1
    last = min(parts[-1][1], len(signs) - 1) if parts else opened
    mine = [(low, end) for low, end in parts if low < len(signs) and tokens[signs[low]] != "("]
    if len(mine) == len(parts):
        return last
    left = ", ".join("".join(tokens[signs[low] : signs[min(end, len(signs) - 1)]]).strip() for low, end in mine)
    kept -= set(range(signs[opened], signs[last] + 1))
    if left:
        tokens[signs[opened]] = f"[{left}]"
        kept.add(signs[opened])
    return last


def _end_of(tokens: list[str], signs: list[int], at: int, ends: set[str]) -> int:
    """The next sign of *ends* that is in no brackets, or behind all."""
    depth = 0
    while at < len(signs):
        token = tokens[signs[at]]
        if depth == 0 and token in ends:
            return at
        depth += (token in _OPENING) - (token in _CLOSING)
        at += 1
    return at


def _write(target: Path, content: str) -> None:
    """Raises: NoFit for a name that no file can have beside the others, or for text that is none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    except ValueError as error:
        raise _unusable(f"{target.name!r} cannot be written: {error}") from error
    except OSError as error:
        if error.errno not in _OF_THE_NAME:
            raise
        raise _unusable(f"it imports {target.name!r}, which no file can be called: {error.strerror}") from error


def _inside(folder: Path, path: str) -> Path:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        raise _unusable(f"it imports {path!r}, which is no path inside")
    return folder / pure


def _includes() -> list[str]:
    """The folders of Google's own files."""
    found = []
    for package, below in (("grpc_tools", "_proto"), ("google.type", "../..")):
        spec = find_spec(package)
        locations = spec.submodule_search_locations if spec else None
        if not locations:
            raise ExtraMissing("formats", what="Protobuf", package=package)
        found.append(f"-I{(Path(next(iter(locations))) / below).resolve()}")
    return found


def _unusable(why: str) -> NoFit:
    return NoFit(f"it is not a readable Protobuf schema: {why}", reason=Reason.UNUSABLE_SCHEMA)
