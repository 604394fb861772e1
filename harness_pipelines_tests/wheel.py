"""The package as users get it: a wheel, and environments that hold nothing but it and what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
#: uv has settings of its own: pip's are handed on, as deploy/run does.
_AS_PIP = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "SSL_CERT_FILE": "PIP_CERT",
}
MB = 1e6
#: What a reader may cost on disk, as delivered; byte code, which pip compiles by itself, is some 50 MB beside it.
READER_MB_MAX = 350.0


def build(folder: Path) -> Path:
    """Build the wheel into *folder*."""
    _uv("build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
    [made] = folder.glob("*.whl")
    return made


def environment(folder: Path, wheel: Path, *extras: str, beside: Sequence[str] = (), pinned: bool = True) -> Path:
    """A new virtual environment in *folder* with *wheel* and some of its *extras*; returns its Python.

    *beside*: requirements of a user's own. *pinned*: with the versions of deploy/constraints.txt.
    """
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
    python = folder / "bin" / "python"
    what = f"harness-pipelines[{','.join(extras)}] @ {wheel.as_uri()}" if extras else str(wheel)
    constraints = ["--constraints", str(ROOT / "deploy" / "constraints.txt")] if pinned else []
    _uv("pip", "install", "--quiet", "--python", str(python), *constraints, what, *beside)
    return python


def size_mb(folder: Path) -> float:
    """What the files below *folder* take, without byte code."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".pyc")
    return sum(path.stat().st_size for path in files) / MB


def run(python: Path, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run *python* with *arguments* and nothing of this environment but *env*, in the folder of its environment."""
    kept = {name: value for name, value in os.environ.items() if name in {"LANG", "TMPDIR"}}
    path = f"{python.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return subprocess.run(
        [str(python), *arguments],
        cwd=python.parents[1],
        env={**kept, "PATH": path, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def _uv(*arguments: str) -> None:
    handed = {ours: os.environ[pip] for ours, pip in _AS_PIP.items() if os.environ.get(pip) and ours not in os.environ}
    done = subprocess.run(
        [str(UV), *arguments], env={**os.environ, **handed}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}\n{done.stderr}"
