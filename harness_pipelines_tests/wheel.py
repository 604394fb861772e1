"""The package as users get it: a wheel, and environments that hold nothing but it and what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
WHEEL_MB_MAX = 2.0
NAME = "harness-pipelines"


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


def installed_mb() -> dict[str, float]:
    """What the package alone, and each extra, takes on disk with all that it needs, by what this environment has.

    Files as delivered, without byte code. Of the package itself only the requirements are counted.
    """
    found = metadata.metadata(NAME).get_all("Provides-Extra") or []
    alone = _closure({None})
    sizes = {"": _files_mb(alone)}
    for extra in sorted(set(found) - {"test"}):
        needed = _closure({None, extra})
        if all(name in _sizes() for name in needed):  # two extras exclude each other
            sizes[extra] = _files_mb(needed)
    return sizes


def _closure(extras: set[str | None]) -> set[str]:
    """Names of all distributions that the package needs with *extras*."""
    waiting: list[tuple[str, frozenset[str | None]]] = [(NAME, frozenset(extras))]
    done: set[tuple[str, frozenset[str | None]]] = set()
    while waiting:
        one = waiting.pop()
        if one in done:
            continue
        done.add(one)
        try:
            lines = metadata.requires(one[0]) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra or ""}) for extra in one[1]):
                waiting.append((canonicalize_name(requirement.name), frozenset({None, *requirement.extras})))
    return {name for name, _ in done} - {NAME}


@cache
def _sizes() -> Mapping[str, float]:
    """Megabytes of the files of each distribution of this environment."""
    found: dict[str, float] = {}
    for one in metadata.distributions():
        files = (Path(str(one.locate_file(file))) for file in one.files or () if file.suffix != ".pyc")
        found[canonicalize_name(one.metadata["Name"])] = sum(f.stat().st_size for f in files if f.is_file()) / MB
    return found


def _files_mb(names: set[str]) -> float:
    return sum(_sizes().get(name, 0.0) for name in names)


def main() -> None:
    """Print the size of the wheel, and what a reader and each extra take on disk. Fails for too large a wheel."""
    with TemporaryDirectory() as folder:
        size = build(Path(folder)).stat().st_size / MB
    print(f"{'the wheel':<18}{size:8.2f} MB")
    for extra, installed in installed_mb().items():
        print(f"{f'with [{extra}]' if extra else 'alone, installed':<18}{installed:8.0f} MB")
    if size > WHEEL_MB_MAX:
        raise SystemExit(f"the wheel has {size:.2f} MB, more than {WHEEL_MB_MAX:g}")


if __name__ == "__main__":
    main()
