"""Prices that `harness cost` multiplies by: a YAML file of the user, or examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness_pipelines.files import Unreadable, read_text
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.wording import SpecError, SpecProblem
from harness_pipelines.spec.yaml_reader import Reader

FILE_BYTES_MAX = 64 * 2**10
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(SpecPart):
    """What things cost. The defaults are examples, about what a cloud asks for; nobody's bill goes by them."""

    currency: Annotated[str, Field(min_length=1, max_length=10, description="Shown beside the amounts.")] = "USD"
    worker_cpu_hour: Annotated[Price, Field(description="One hour of one core of a worker.")] = 0.05
    lake_gb_month: Annotated[Price, Field(description="10^9 bytes of the lake for 30 days.")] = 0.023
    postgres_gb_month: Annotated[Price, Field(description="10^9 bytes of Postgres's disk for 30 days.")] = 0.115


def load_prices(path: str | Path) -> Prices:
    """The prices in a YAML file; those that it does not name are the examples. Raises: SpecError."""
    reader = Reader()
    try:
        text = read_text(Path(path), FILE_BYTES_MAX)
    except Unreadable as error:
        raise SpecError(str(path), [SpecProblem(line=None, field="", message=f"{path} {error}")]) from None
    words = reader.read(text, str(path)) if text.strip() else {}
    if reader.problems:
        raise SpecError(str(path), reader.problems)
    return Prices.model_validate(words)
