"""Protobuf's schemas as text, compiled by protoc in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from harness_pipelines.codecs.base import Reason
from harness_pipelines.codecs.written import NoFit
from harness_pipelines.errors import UsageError

MAIN = "harness_main.proto"
COMPILE_S_MAX = 60.0
_NO_ERROR = re.compile(r"warning:|^[IW]\d{4} ")
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
    with TemporaryDirectory(prefix="harness-") as name:
        folder = Path(name)
        for path, content in {**_BUILT_IN, **references, MAIN: text}.items():
            target = _inside(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        made = folder / "harness_descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *_includes()]
        command += ["--include_imports", f"--descriptor_set_out={made}", MAIN]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise _unusable(f"protoc did not end within {COMPILE_S_MAX:g} s") from error
        if done.returncode:
            said = done.stderr.replace(f"{folder}/", "").replace(MAIN, "schema")
            lines = [line for line in said.splitlines() if not _NO_ERROR.search(line)]
            raise _unusable("; ".join(lines)[:300] or f"protoc ended with {done.returncode}")
        return made.read_bytes()


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
            raise UsageError(f"for Protobuf: pip install 'harness-pipelines[formats]' (no package {package})")
        found.append(f"-I{(Path(next(iter(locations))) / below).resolve()}")
    return found


def _unusable(why: str) -> NoFit:
    return NoFit(f"no Protobuf schema that can be read: {why}", reason=Reason.UNUSABLE_SCHEMA)
