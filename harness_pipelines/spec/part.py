"""The base of all models of a spec: the whole one, and each part that Python code can build alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from harness_pipelines.spec.wording import SpecError


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
    """Raises: SpecError, for pydantic's ValidationError about *words* of *model*."""
    try:
        yield
    except ValidationError as error:
        from harness_pipelines.spec.load import problems_of  # which knows all models

        raise SpecError(model.called(words), problems_of(error, words, model=model)) from None
