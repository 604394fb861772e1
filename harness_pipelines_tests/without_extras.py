"""A process in which no package of an extra can be imported: ``python -m harness_pipelines_tests.without_extras``.

With ``modules`` it prints what importing each module of the package raises, as JSON; with ``harness`` it is the command
line, with ``commands`` each command line of a JSON list in turn. What an extra brings is hidden, by the names that it
is imported by.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from harness_pipelines.extras import MODULES

#: What comes with an extra, and is imported by none of our modules.
BESIDE = frozenset({"grpc_status", "grpc_tools", "PIL", "py4j", "tpchgen", "graphene", "alembic"})
HIDDEN = frozenset().union(*MODULES.values(), BESIDE) - {"cachetools", "certifi"}  # PyIceberg has these two


class Hiding(PathFinder):
    """Finds all but `HIDDEN`."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


def raised() -> dict[str, list[str]]:
    """By module what its import raises: the kind of error, and what it says."""
    import harness_pipelines

    found: dict[str, list[str]] = {}
    walked = pkgutil.walk_packages(harness_pipelines.__path__, "harness_pipelines.", onerror=lambda _: None)
    for one in walked:
        try:
            importlib.import_module(one.name)
        except Exception as error:
            found[one.name] = [type(error).__name__, str(error)]
    return found


def main() -> None:
    sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
    what, *arguments = sys.argv[1:]
    if what == "modules":
        print(json.dumps(raised()))
        return
    from harness_pipelines.cli.main import main as harness

    if what == "commands":
        for command in json.loads(arguments[0]):
            sys.argv[1:] = command
            try:
                harness()
            except SystemExit as ended:
                if ended.code:
                    raise
        return
    sys.argv[1:] = arguments
    harness()


if __name__ == "__main__":
    main()
