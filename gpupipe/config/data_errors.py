"""Adds the location of a setting in the YAML to errors that only the data shows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gpupipe.config.validation import Config
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Progress, ignore_progress
from gpupipe.errors import ConfigError, DataError, NoSamplesError, Problem
from gpupipe.schema.document import Loc

_SETTING = re.compile(r"\b(?:data|loader)(?:\.\w+)+")
"""Matches the name of a setting in a message, such as data.root."""


def build_index(config: Config, progress: Progress = ignore_progress) -> Index:
    """List the samples of a config. Errors name the file and line of the setting.

    Args:
        config: The config.
        progress: Called with (action, done, total) while the samples are indexed or fetched.

    Raises:
        DataError: What `Source.index` raises, with the location before its message.
        FetchError: A download failed.
    """
    with locate_errors(config, "data"):
        return config.source.index(progress)


@contextmanager
def locate_errors(config: Config, part: str) -> Iterator[None]:
    """Put the location of a setting before the message of each error raised in the context.

    The setting is the first one that the message names and the config has, such as data.root;
    otherwise it is all of `part`. Errors about single samples stay as they are. So do all errors if
    the config comes from a dict, which has no lines.

    Args:
        config: The config.
        part: The part of the config that the errors are about: "data" or "loader".
    """
    try:
        yield
    except ConfigError as e:
        raise ConfigError([_locate_problem(config, p, part) for p in e.problems]) from e.__cause__
    except DataError as e:
        where = _locate(config, str(e), part) if type(e) in (DataError, NoSamplesError) else ""
        if not where:
            raise
        raise DataError(f"{where}: {e}") from e.__cause__


def _locate_problem(config: Config, problem: Problem, part: str) -> Problem:
    """Return a problem with a location; unchanged if it has one, or if there is none."""
    if problem.where and problem.where != part and not _SETTING.fullmatch(problem.where):
        return problem
    where = _locate(config, str(problem), part)
    what = problem.what if problem.where == part else str(problem)
    return Problem(where, what) if where else problem


def _locate(config: Config, message: str, part: str) -> str:
    """Return the location of the setting that a message is about; "" if there is none."""
    document = config.document
    if document is None:
        return ""
    named: list[Loc] = [tuple(name.split(".")) for name in _SETTING.findall(message)]
    for loc in [*named, (part,)]:
        if document.holds(loc):
            where = document.where(loc)
            # A key of a dict has the name of its document as its location, and no line.
            return "" if where.partition(":")[0] == document.name == "config" else where
    return ""
