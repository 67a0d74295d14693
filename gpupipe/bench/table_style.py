"""The style that all printed tables share."""

from __future__ import annotations

from rich import box
from rich.table import Table


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table in the style that all tables share."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=any(columns),
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table
