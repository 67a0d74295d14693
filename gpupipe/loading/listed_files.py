"""Looks for files that a list names and that do not exist, for `load()` and `gpupipe check`."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpupipe.config import Config, build_index
from gpupipe.dataset.columns import Rows
from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import read_states
from gpupipe.errors import DataError, counted
from gpupipe.sampling.selection import Selection

_SAMPLE = 1000
"""How many rows are looked at, unless all are. With 1 % of the files missing, one is found in
99.996 % of cases.
"""
_PATHS_PER_TASK = 500
_THREADS = 16
"""A `stat` on a network file system takes a millisecond, in which others can be under way."""
_MAX_NAMED = 5
_ADVICE = "put the files there, take the rows out, or set data.root to their folder"


def check_sample_of_files(config: Config, index: Index, selection: Selection) -> None:
    """Look for the files of 1,000 random rows, if a list names them and a bad file ends the run.

    Only rows that the run may draw are looked at. It takes 4 ms on a local disk.

    Args:
        config: The config.
        index: Its samples.
        selection: Which of them the run draws.

    Raises:
        DataError: Files are missing. The message has the first, and where the list names it.
    """
    if config.loader.on_error == "skip":
        return
    if not any(source.find_rows_in_list() for source in config.source.list_parts()):
        return
    drawn = np.arange(len(index)) if selection.rows is None else selection.rows
    if selection.weights is not None:
        drawn = drawn[selection.weights[drawn] > 0]
    rows = drawn[_choose_rows(len(drawn), False)]
    missing = find_missing(index, rows)
    if not missing:
        return
    if (locate := config.source.find_rows_in_list()) is None:  # its parts have lists
        for _ in check_listed_files(config, False):
            pass  # raises the error with the line of the list
        raise DataError(f"{missing[0][1]}: no such file: {_ADVICE}")
    seen = _describe_rows(len(rows), len(drawn))
    raise DataError(_describe(missing, locate, seen, len(rows) < len(drawn)))


def check_listed_files(config: Config, look_at_all: bool) -> Iterator[str]:
    """Yield one line for each list of files in `data`: how many of its files were looked for.

    Sources that find their files themselves have no such list.

    Args:
        config: The config.
        look_at_all: Whether to look for all files, instead of those of 1,000 random rows.

    Raises:
        DataError: Files are missing. The message has the first ones, with file and line of the
            list. If `loader.on_error` is "skip", it is a line instead.
    """
    for source in config.source.list_parts():
        locate = source.find_rows_in_list()
        if locate is None:
            continue
        index = build_index(config) if source is config.source else source.index()
        rows = _choose_rows(len(index), look_at_all)
        missing = find_missing(index, rows)
        seen = _describe_rows(len(rows), len(index))
        if missing:
            problem = _describe(missing, locate, seen, len(rows) < len(index))
            if config.loader.on_error != "skip":
                raise DataError(problem)
            yield f"files: {problem}"
        else:
            hint = "" if len(rows) == len(index) else "; 'gpupipe check --files' looks for all"
            yield f"files: {seen}, and all are there{hint}"


def _choose_rows(count: int, look_at_all: bool) -> Rows:
    if look_at_all or count <= _SAMPLE:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _SAMPLE, replace=False))


def find_missing(index: Index, rows: Rows) -> list[tuple[int, str]]:
    """Return (row, path) of each file that does not exist or cannot be reached, by row."""
    spans = [(row, column.span(row)) for column in index.columns.values() for row in rows.tolist()]
    paths = [(row, span.path) for row, span in spans if span is not None]
    tasks = [paths[n : n + _PATHS_PER_TASK] for n in range(0, len(paths), _PATHS_PER_TASK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        states = pool.map(lambda task: read_states([path for _, path in task]), tasks)
        found = [state for part in states for state in part]
    return sorted(file for file, state in zip(paths, found, strict=True) if state is None)


def _describe(
    missing: list[tuple[int, str]], locate: Callable[[int], str], seen: str, is_sample: bool
) -> str:
    named = [f"{locate(row)}: {path}: no such file" for row, path in missing[:_MAX_NAMED]]
    more = f"; and {len(missing) - _MAX_NAMED:,} more" if len(missing) > _MAX_NAMED else ""
    hint = " ('gpupipe check --files' looks for all)" if is_sample else ""
    return f"{'; '.join(named)}{more}; {seen}{hint}: {_ADVICE}"


def _describe_rows(seen: int, count: int) -> str:
    return f"{seen:,} of {counted(count, 'row')} looked at"
