"""The base of all models of a spec: the whole one, and each part that Python code can build alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness_pipelines.spec.settings import EngineWord
from harness_pipelines.spec.types import unstorable
from harness_pipelines.spec.wording import Place, SpecError, SpecProblem, dotted

_NESTING_MAX = 50
_VALUES_MAX = 200_000  #: thousands of columns, each with its words
_DIGITS_MAX = 400
_UNSEEN = "cannot be shown or compared; write text, a number, true or false, or a list or mapping of them"
_PLAIN = (str, bytes, bool, int, float, type(None))


TableEngine = Annotated[
    EngineWord | None,
    Field(
        description="What moves its rows: spark; arrow: the worker itself, without Java; auto: per move the "
        "cheaper one of both. Default: HARNESS_ENGINE, else spark."
    ),
]


class SpecPart(BaseModel):
    """Settings that cannot change.

    Wrong ones are refused in the same sentences, whether they come in a file or are given to the class in Python.
    Inside another pydantic model they are part of its ValidationError, with their places.

    Raises: SpecError, with one sentence for each problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # callers see the signatures that pydantic gives them

        def __init__(self, /, **words: Any) -> None:
            with _in_words_of_a_spec(type(self), words):
                super().__init__(**words)

        __init__.__pydantic_base_init__ = True  # a model around this one validates it without this method

        @classmethod
        def model_validate(cls, obj: Any, **how: Any) -> Self:
            with _in_words_of_a_spec(cls, obj):
                return super().model_validate(obj, **how)

        @classmethod
        def model_validate_json(cls, json_data: str | bytes | bytearray, **how: Any) -> Self:
            with _in_words_of_a_spec(cls, None):
                return super().model_validate_json(json_data, **how)

        @classmethod
        def model_validate_strings(cls, obj: Any, **how: Any) -> Self:
            with _in_words_of_a_spec(cls, obj):
                return super().model_validate_strings(obj, **how)

    @classmethod
    def inside(cls, words: Any) -> Self:
        """The model of *words* inside of something that knows their place: a model around it, or a file.

        Raises: pydantic's ValidationError, with places from *words* on.
        """
        return cls.__pydantic_validator__.validate_python(words)  # type: ignore[no-any-return]  # it is of any model

    @classmethod
    def called(cls, words: Any) -> str:
        """What stands for a file in messages about *words*."""
        return cls.__name__


@contextmanager
def _in_words_of_a_spec(model: type[SpecPart], words: Any) -> Iterator[None]:
    """Raises: SpecError, for pydantic's ValidationError about *words* of *model*, and where they cannot be shown."""
    if (problem := _Look().trouble(words, (), ())) is not None:
        raise SpecError(model.__name__, [problem])
    try:
        yield
    except ValidationError as error:
        from harness_pipelines.spec.load import problems_of  # which knows all models

        raise SpecError(model.called(words), problems_of(error, words, model=model)) from None


class _Look:
    """Looks at all values that Python code gives, before one of them is compared or quoted in a message."""

    def __init__(self) -> None:
        self._values = 0

    def trouble(self, value: Any, place: Place, around: tuple[int, ...]) -> SpecProblem | None:
        """What no file of a spec could hold in *value*; *around*: the lists and mappings that it is in."""
        self._values += 1
        inner: list[tuple[str | int, Any]] = []
        try:
            why = self._why(value, around) or (_odd_name(value) if isinstance(value, Mapping) else None)
            inner = [] if why else _inside(value)
        except Exception as error:  # the caller's own `__repr__` or `__eq__` may raise anything: refused, naming it
            why = f"a value of the class {type(value).__name__!a} {_UNSEEN} (it raised {type(error).__name__!a})"
        if why is not None:
            return SpecProblem(line=None, field=dotted(place), message=why)
        troubles = (self.trouble(one, (*place, word), (*around, id(value))) for word, one in inner)
        return next((found for found in troubles if found is not None), None)

    def _why(self, value: Any, around: tuple[int, ...]) -> str | None:
        kind = type(value)
        if kind not in _PLAIN and not issubclass(kind, list | tuple | dict):
            _ = repr(value), str(value), bool(value == ""), isinstance(value, str)
        if id(value) in around:
            return "it contains itself"
        if len(around) > _NESTING_MAX:
            return f"nested more than {_NESTING_MAX} deep"
        if self._values > _VALUES_MAX:
            return f"more than {_VALUES_MAX:,} values"
        if issubclass(kind, str):
            return f"the text has {said}, which no table can hold" if (said := unstorable(value)) else None
        if issubclass(kind, int) and abs(value) >= 10**_DIGITS_MAX:
            return f"a number has at most {_DIGITS_MAX} digits"
        return None


def _inside(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, list | tuple):
        return [*enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _odd_name(value: Mapping[Any, Any]) -> str | None:
    for name in value:
        _ = repr(name), str(name)
        # What cannot be printed is refused with the other rules of names, if it can be encoded.
        if isinstance(name, str) and (why := unstorable(name.replace("\0", ""))) is not None:
            return f"the name of a setting has {why}; remove the character"
    return None
