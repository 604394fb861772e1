"""`harness.toml`: settings of several installations, such as dev and prod, each under a name.

    default = "dev"

    [dev]
    HARNESS_HOME = ".harness"

    [prod]
    HARNESS_DSN = {file = "/etc/harness/dsn"}
    HARNESS_KAFKA = "kafka:9092"
    HARNESS_KAFKA_SASL_PASSWORD = {env = "KAFKA_PASSWORD"}

A profile has variables of the harness, by their names. What the environment has itself counts more. The file is
looked for from the working folder upwards, as git looks for its folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.spec.wording import nearest, quote

FILE = "harness.toml"
PROFILE = "HARNESS_PROFILE"  #: the variable that names the profile
_VARIABLE = re.compile(r"HARNESS_[A-Za-z0-9_]+")
_PATHS = frozenset({"HARNESS_HOME", "HARNESS_JARS", "HARNESS_WAREHOUSE"})  #: relative ones are below the file's folder
_HOME = ".harness"


class ProfileWrong(UsageError):
    """The file of profiles, or the choice of one, is wrong."""

    way_on = "correct `harness.toml`, or `--profile` and HARNESS_PROFILE"


def working_folder() -> Path:
    """Where looking begins; the root where the working folder is gone."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def nearest_file(start: Path) -> Path | None:
    """The file of profiles in *start* or the nearest folder above. Raises: ProfileWrong for one of another user."""
    # Not by pathlib, which fails where this user may not look.
    found = next((folder / FILE for folder in (start, *start.parents) if os.path.isfile(folder / FILE)), None)
    if found is not None and not _is_ours(found):
        raise ProfileWrong(f"{found} belongs to another user, who could name servers for you; nothing was done")
    return found


def nearest_home(start: Path) -> Path:
    """The folder of embedded services in *start* or the nearest folder above; else the one to make in *start*."""
    homes = (folder / _HOME for folder in (start, *start.parents))
    return next((home for home in homes if os.path.isfile(home / "services.json") and _is_ours(home)), start / _HOME)


def _is_ours(path: Path) -> bool:
    return path.stat().st_uid in trusted()


def trusted() -> set[int]:
    """The users whose files may name servers: this one and root."""
    return {os.getuid(), 0}


def with_profile(env: Mapping[str, str], *, profile: str | None = None, start: Path | None = None) -> dict[str, str]:
    """*env* and what the chosen profile adds to it. Raises: ProfileWrong."""
    wanted = profile or env.get(PROFILE) or None
    file = nearest_file(start or working_folder())
    if file is None:
        if wanted is not None:
            raise ProfileWrong(f"there is no {FILE} here or above, so no profile {quote(wanted)}")
        return dict(env)
    words = _read(file)
    name = _chosen(file, words, wanted)
    return dict(env) if name is None else {**_variables(file, name, words[name], env), **env}


def _read(file: Path) -> Mapping[str, Any]:
    try:
        words = tomllib.loads(read_text(file, SECRET_BYTES_MAX))
    except Unreadable as error:
        raise ProfileWrong(f"{file} {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ProfileWrong(f"{file} is no TOML: {error}") from error
    for name, value in words.items():
        if name != "default" and not isinstance(value, dict):
            raise ProfileWrong(f"{file}: {quote(name)} belongs to a profile; write it below a line such as [dev]")
    return words


def _chosen(file: Path, words: Mapping[str, Any], wanted: str | None) -> str | None:
    """The name of the profile that counts; None: the file has none."""
    names = [name for name in words if name != "default"]
    name = wanted if wanted is not None else words.get("default")
    if name is None:
        if len(names) > 1:
            raise ProfileWrong(
                f"{file} has the profiles {', '.join(names)}, and none is chosen; give --profile or set {PROFILE}, or "
                'write `default = "..."` at its top'
            )
        return names[0] if names else None
    if name not in names:
        near = nearest(str(name), names)
        hint = f" (did you mean {quote(near)}?)" if near else ""
        raise ProfileWrong(f"{file} has no profile {quote(name)}{hint}; profiles: {', '.join(names) or 'none'}")
    return str(name)


def _variables(file: Path, profile: str, words: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in words.items():
        where = f"{file}: [{profile}] {name}"
        if not _VARIABLE.fullmatch(name) or name == PROFILE:
            raise ProfileWrong(f"{where} is no setting; profiles have variables such as HARNESS_KAFKA")
        if name in env:
            continue  # and what it would say, such as a secret's file, may be missing here
        text = _value(where, file.parent, value, env)
        if name in _PATHS and "://" not in text and not text.startswith("file:"):
            text = str(file.parent / Path(text).expanduser())
        found[name] = text
    return found


def _value(where: str, folder: Path, value: Any, env: Mapping[str, str]) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case {"env": str(name), **rest} if not rest:
            if not env.get(name):
                raise ProfileWrong(f"{where}: the variable {name} is not set")
            return env[name]
        case {"file": str(name), **rest} if not rest:
            try:
                return read_text(folder / Path(name).expanduser(), SECRET_BYTES_MAX).partition("\n")[0].strip()
            except Unreadable as error:
                raise ProfileWrong(f"{where}: {name} {error}") from error
    raise ProfileWrong(f'{where}: write text, a number, {{env = "NAME"}} or {{file = "PATH"}}, not {quote(value)}')
