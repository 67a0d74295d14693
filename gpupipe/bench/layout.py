"""Lays out the tables that the commands print, by the width of the screen."""

from collections.abc import Iterator
from typing import cast

from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from gpupipe.runtime.text import find_lines

_MIN_WIDTH = 60
"""Narrower screens show one line per cell."""
_LONGEST_WORD = 24
"""Longer words, such as paths, may be folded; those of the first column, the names, are not."""
_GAP = 3
"""The width between two columns: a space, a divider and a space."""


class WordTable(Table):
    """A table that is as wide as its content, and breaks lines between words where that is wider.

    On a screen of fewer than 60 columns, or where the words do not fit side by side, each cell is a
    line "column: value" of its own. No line ends in spaces.

    Args:
        heading: The line above the table, or "".
        *columns: The titles of the columns. The table has no head if all are "".

    Attributes:
        note: The line below the table, or "".
    """

    def __init__(self, heading: str, *columns: str) -> None:
        super().__init__(
            *columns, box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False, expand=False
        )
        self.heading, self.note = heading, ""
        for column in self.columns:
            column.overflow = "fold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from _render_lines(Text(self.heading, style="table.title"), console, options)
        widths = self._fit(console, options)
        if widths is None:
            content = self._stack(console, options)
        else:
            for column, width in zip(self.columns, widths, strict=True):
                column.width = width
            content = cast("Iterator[Segment]", super().__rich_console__(console, options))
        for line in Segment.split_lines(content):
            yield from _strip(line)
        yield from _render_lines(Text(self.note, style="table.caption"), console, options)

    def _fit(self, console: Console, options: ConsoleOptions) -> list[int] | None:
        """Return the width of each column; None if the words do not fit side by side."""
        room = options.max_width - 2 - _GAP * (len(self.columns) - 1)
        sizes = [
            _measure(column, console, options, is_first=number == 0)
            for number, column in enumerate(self.columns)
        ]
        if sum(size.maximum for size in sizes) <= room:
            return [size.maximum for size in sizes]
        widths = [size.minimum for size in sizes]
        if options.max_width < _MIN_WIDTH or sum(widths) > room:
            return None
        for _ in range(room - sum(widths)):  # a space for the narrowest column that has use for it
            wanting = [n for n, size in enumerate(sizes) if widths[n] < size.maximum]
            widths[min(wanting, key=widths.__getitem__)] += 1
        return widths

    def _stack(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield one line per cell, and an empty line after each row."""
        yield Segment.line()
        heads = [str(column.header) for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            cells = [console.render_str(str(cell)) for cell in row]
            if not self.show_header:
                cells = [Text(": ").join(filter(None, cells))]
            for head, cell in zip(heads, cells, strict=False):
                if cell:
                    line = Text.assemble((f"{head}: ", "bold"), cell) if head else cell
                    yield from _render_lines(line, console, options)
            if self.show_header:
                yield Segment.line()


def _render_lines(text: Text, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
    """Yield the lines of a text, broken between words; nothing for an empty one."""
    if text:
        for part in find_lines(text.plain, options.max_width, folds=True):
            yield from console.render(text[part], options)


def _measure(
    column: Column, console: Console, options: ConsoleOptions, is_first: bool
) -> Measurement:
    """Return the least width of a column, in which its words are whole, and that of its content."""
    everything = options.update(max_width=10**6)
    cells = [cell for cell in (column.header, *column.cells) if cell != ""]
    sizes = [Measurement.get(console, everything, cell) for cell in cells]
    widest = max((size.maximum for size in sizes), default=0)
    word = max((size.minimum for size in sizes), default=0)
    least = max(word, _LONGEST_WORD) if is_first else min(word, _LONGEST_WORD)
    return Measurement(min(widest, least), widest)


def _strip(line: list[Segment]) -> Iterator[Segment]:
    """Yield the segments of a line without the spaces at its end, and a line break."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        last = line.pop()
        line.append(Segment(last.text.rstrip(), last.style))
    yield from line
    yield Segment.line()
