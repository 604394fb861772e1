"""The screen of `harness top`: a line for each table, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.markup import escape
from rich.text import Text

from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import needs
from harness_pipelines.show import bars
from harness_pipelines.show.rates import Rates, TableRates, rate, sparkline
from harness_pipelines.show.status_text import show_table

if TYPE_CHECKING:
    from harness_pipelines.show.look import Look
    from harness_pipelines.show.status import TableSeen

with needs("top", "`harness top`"):
    from textual.app import App, ComposeResult
    from textual.binding import Binding, BindingType
    from textual.containers import VerticalScroll
    from textual.screen import Screen
    from textual.widgets import DataTable, Footer, Static

SPARK_CELLS = 20
_STYLES: Mapping[str, str] = {"ok": "green", "late": "yellow", "no worker": "dim"}  #: by state; of all others red


class Column:
    """A column of the list: its title, its key on the keyboard, its text, and what it is sorted by."""

    def __init__(
        self,
        title: str,
        key: str,
        text: Callable[[TableRates], str | Text],
        by: Callable[[TableRates], Any],
    ) -> None:
        self.title, self.key, self.text, self.by = title, key, text, by


def _number(text: str) -> Text:
    return Text(text, justify="right")


def _count(value: int | None) -> Text:
    return _number("-" if value is None else f"{value:,}")


#: Tables are sorted by a column with its greatest value first, but for the name.
COLUMNS: Sequence[Column] = (
    Column("table", "t", lambda one: one.table, lambda one: one.table),
    Column(
        "state", "s", lambda one: Text(one.state, style=_STYLES.get(one.state, "bold red")), lambda one: not one.is_well
    ),
    Column("produced/s", "c", lambda one: _number(rate(one.produced_per_s)), lambda one: one.produced_per_s or 0.0),
    Column("ingested/s", "r", lambda one: _number(rate(one.ingested_per_s)), lambda one: one.ingested_per_s or 0.0),
    Column("", "", lambda one: Text(sparkline(one.ingested_history, width=SPARK_CELLS), style="cyan"), lambda one: 0),
    Column("in Kafka", "l", lambda one: _count(one.tail), lambda one: one.tail or 0),
    Column(
        "waiting",
        "w",
        lambda one: _number("-" if one.waiting_s is None else bars.ago(one.waiting_s)),
        lambda one: one.waiting_s or 0.0,
    ),
    Column("in buffer", "b", lambda one: _count(one.buffer), lambda one: one.buffer),
    Column("to merge", "m", lambda one: _count(one.unmerged), lambda one: one.unmerged),
    Column("refused", "e", lambda one: _count(one.quarantined), lambda one: one.quarantined),
    Column("in lake", "n", lambda one: _count(one.lake_rows), lambda one: one.lake_rows),
    Column("workers", "", lambda one: _count(one.workers), lambda one: 0),
)


class TopApp(App[None]):
    """*look* is asked every *every_s* seconds, beside the screen. What it raises is shown, and it is asked again."""

    CSS = "#head { height: auto; padding: 0 1; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("enter", "open", "Open", priority=True),
        *(Binding(one.key, f"sort('{one.title}')", one.title, show=False) for one in COLUMNS if one.key),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "harness top"

    def __init__(self, look: Callable[[], Look], *, every_s: float) -> None:
        super().__init__()
        self._look, self._every_s = look, every_s
        self._rates, self._sorted_by = Rates(), COLUMNS[0]
        self._seen: dict[str, TableSeen] = {}
        self._rows: list[TableRates] = []

    def compose(self) -> ComposeResult:
        yield Static("looking ...", id="head")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self._list.add_columns(*(one.title for one in COLUMNS))
        self._ask()
        self.set_interval(self._every_s, self._ask)

    @property
    def _list(self) -> DataTable[str | Text]:
        return self.screen_stack[0].query_one(DataTable)

    def _ask(self) -> None:
        """Look once, in a thread; a look that is under way still is not joined by another."""
        if not any(worker.group == "look" and not worker.is_finished for worker in self.workers):
            self.run_worker(self._looked, thread=True, group="look")

    def _looked(self) -> None:
        try:
            found = self._look()
        except HarnessError as error:
            self.call_from_thread(self._tell, f"[red]{escape(str(error))}[/]")
        else:
            self.call_from_thread(self._take, found, time.monotonic())

    def _tell(self, head: str) -> None:
        self.screen_stack[0].query_one("#head", Static).update(head)

    def _take(self, found: Look, now_s: float) -> None:
        self._seen = {one.table: one for one in found.tables}
        self._rows = self._rates.of(found.tables, now_s=now_s)
        taken = sum(one.ingested_per_s or 0.0 for one in self._rows)
        unwell = sum(not one.is_well for one in self._rows) + len(found.sick)
        lines = [
            f"{len(self._rows) + len(found.sick)} tables, {unwell} not ok   {rate(taken)} records/s ingested   "
            f"every {self._every_s:g} s",
            f"[dim]sort by {', '.join(f'{c.key}: {c.title}' for c in COLUMNS if c.key)}[/]",
            *(f"[red]{escape(one.name)} cannot be read: {escape(one.why)}[/]" for one in found.sick),
            *(f"[red]{escape(trouble)}[/]" for trouble in found.troubles),
        ]
        self._tell("\n".join(lines))
        self._fill()
        if isinstance(self.screen, TableScreen):
            self.screen.show(self._seen.get(self.screen.table))

    def _fill(self) -> None:
        chosen = self._chosen
        is_name = self._sorted_by is COLUMNS[0]
        self._rows.sort(key=lambda one: one.table)
        self._rows.sort(key=self._sorted_by.by, reverse=not is_name)
        self._list.clear()
        for one in self._rows:
            self._list.add_row(*(column.text(one) for column in COLUMNS), key=one.table)
        if chosen in self._seen:
            self._list.move_cursor(row=self._list.get_row_index(chosen))

    @property
    def _chosen(self) -> str:
        """The table that the cursor is on; empty where there is none."""
        rows = self._list
        if not rows.is_valid_coordinate(rows.cursor_coordinate):
            return ""
        return str(rows.coordinate_to_cell_key(rows.cursor_coordinate).row_key.value)

    def action_sort(self, title: str) -> None:
        """Sort by the column *title*."""
        self._sorted_by = next(one for one in COLUMNS if one.title == title)
        self._fill()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by a column whose title was clicked."""
        if COLUMNS[event.column_index].key:
            self.action_sort(COLUMNS[event.column_index].title)

    def action_open(self) -> None:
        """Show one table as `harness status` does."""
        if (seen := self._seen.get(self._chosen)) is not None and not isinstance(self.screen, TableScreen):
            self.push_screen(TableScreen(seen))


class TableScreen(Screen[None]):
    """One table as `harness status` prints it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, seen: TableSeen) -> None:
        super().__init__()
        self.table, self._first = seen.table, seen

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="table")
        yield Footer()

    def on_mount(self) -> None:
        self.show(self._first)

    def show(self, seen: TableSeen | None) -> None:
        """Show *seen*, or that there is no such table any more."""
        if seen is None:
            self.query_one("#table", Static).update(f"{self.table} is gone")
            return
        out = bars.console()
        with out.capture() as captured:
            show_table(seen, out)
        self.query_one("#table", Static).update(Text.from_ansi(captured.get()))
