"""A table as a Dagster component: ``defs/<name>/defs.yaml`` of the user's project."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml
from dagster import Component, ComponentLoadContext, Definitions, Model, Resolvable
from pydantic import Field

from harness_pipelines.defs.build import shared
from harness_pipelines.defs.tables import table_definitions
from harness_pipelines.defs.work import Shown
from harness_pipelines.spec.load import load_spec, load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError


class Table(Component, Model, Resolvable):
    """One table of the data harness: its assets, checks and jobs. The first one brings the sensors for all of them.

    The file is the truth: a table that the ledger does not have, or has with other words, is applied by the sensor
    ``harness_lag``, as ``harness table apply`` would.
    """

    spec: Mapping[str, Any] | str = Field(
        description="the words of docs/reference/table-spec.md, or the name of a file in this folder that has them"
    )
    group: str | None = Field(default=None, description="Dagster's asset group; default: the table's namespace")
    owners: Sequence[str] = Field(default=(), description="of the assets: an address, or team:name")
    tags: Mapping[str, str] = Field(default_factory=dict, description="of the assets")

    def read(self, context: ComponentLoadContext) -> TableSpec:
        """The table's spec. Raises: SpecError."""
        if isinstance(self.spec, str):
            return load_spec(context.path / self.spec)
        try:
            return load_spec_text(yaml.safe_dump(dict(self.spec)))
        except SpecError as error:  # whose lines are not those of the file
            raise SpecError(str(context.path), (replace(p, line=None) for p in error.problems)) from None

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Of this table, and of what all tables share if it is the first."""
        spec = self.read(context)
        mine = table_definitions(spec, Shown(group=self.group, owners=self.owners, tags=self.tags))
        first, *others = context.component_tree.get_all_components(Table)
        if self is not first:
            return mine
        specs = [spec, *(other.read(context) for other in others)]
        return Definitions.merge(mine, shared(specs, declared=True))
