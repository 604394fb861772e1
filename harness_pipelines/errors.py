"""One taxonomy of errors. Each states the expected and the found value, what was written, and the safe next step.

Idea: dlt's terminal and transient errors, PyIceberg's unknown commit state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from harness_pipelines.secret import redact


class Recovery(StrEnum):
    """The caller's safe next step."""

    NEVER = "never"  #: the same call can never succeed; a person (or another spec) has to change something
    REFRESH = "refresh"  #: read the present state again and plan again
    RESOLVE = "resolve"  #: the outcome is unknown: ask the ledger before anything else


class HarnessError(Exception):
    """Base of every error that the harness raises on purpose.

    Its text may quote a library and appears in terminals, logs, the ledger and Dagster. Therefore this class redacts
    secrets for all of them.
    """

    recovery: ClassVar[Recovery] = Recovery.NEVER
    exit_code: ClassVar[int] = 1
    way_on: ClassVar[str] = ""  #: what an operator does; empty: what `todo` says of its kind
    setting: tuple[str, ...] = ()  #: the setting of a spec that caused it; empty: none, or unknown

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))

    def blaming(self, *setting: str) -> Self:
        """Name the *setting* that caused it, such as ``("transform", "filter")``; `load.located` adds the line."""
        self.setting = setting
        return self

    @classmethod
    def todo(cls) -> str:
        """Return the remedy for an operator."""
        if cls.way_on:
            return cls.way_on
        if cls.exit_code == 1 and cls.recovery is Recovery.REFRESH:
            return "nothing: the stage reads the state again and makes a new plan; a command may be repeated"
        return _WAYS_ON[cls.exit_code]


#: By exit code, where a class says nothing itself.
_WAYS_ON = {
    1: "change what the message names, then run the same command",
    2: "correct the command or the spec; nothing was done",
    75: "run the same command again; workers continue automatically",
    76: "first check with `harness status TABLE` whether it took effect",
}


class TryAgain(HarnessError):
    """A service is away or busy; the same command may be repeated (exit code 75)."""

    recovery: ClassVar[Recovery] = Recovery.REFRESH
    exit_code: ClassVar[int] = 75


class DatabaseAway(TryAgain):
    """The ledger's database does not answer. Cleaning up after this error must not ask it again."""

    way_on: ClassVar[str] = "nothing: workers continue by themselves; is HARNESS_DSN right?"


class OutcomeUnknown(HarnessError):
    """A COMMIT was sent and its answer was lost (exit code 76)."""

    recovery: ClassVar[Recovery] = Recovery.RESOLVE
    exit_code: ClassVar[int] = 76


class UsageError(HarnessError):
    """The command or the spec is wrong; nothing was done (exit code 2)."""

    exit_code: ClassVar[int] = 2
