"""What a source is, and where sources are found.

A source says which samples exist and where their bytes are. It answers with an Index.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import ClassVar

import pydantic

from gpupipe.errors import did_you_mean
from gpupipe.index import Index
from gpupipe.step import Spec

GROUP = "gpupipe.sources"
TAKEN = ("label", "id")
"""Names in a batch that no field and no value may have."""
Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is (None: not known)."""


def quiet(what: str, done: int, total: int | None) -> None:
    """The Progress that shows nothing."""


class Source(pydantic.BaseModel):
    """The base of all sources: a frozen model of what stands under `data:` in the YAML, beside `source: NAME`.

    masks: fields whose numbers are classes, such as segmentation masks: steps take the nearest pixel, and fill with 0.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    masks: tuple[str, ...] = ()

    def index(self, progress: Progress = quiet) -> Index:
        """The samples, from the cached index where it still holds, else scanned. May fetch the data first.

        Raises DataError where there is nothing to read, FetchError where fetching failed.
        """
        raise NotImplementedError(f"{type(self).__name__} must build an index")

    def specs(self) -> dict[str, Spec]:
        """What each field of a sample is when the first step gets it; the first field is what steps work on by default. Raises DataError."""
        return {"image": Spec()}

    def absent(self) -> str:
        """Why the data is not there yet ("... will be fetched"), or "" where it is."""
        return ""


def check_names(fields: Sequence[str], values: Sequence[str]) -> None:
    """Raises ValueError where a field or value cannot be called so in a batch."""
    every = [*fields, *values]
    for name in every:
        if name in TAKEN or not name or every.count(name) > 1:
            raise ValueError(f"'{name}' cannot be the name of a field or value: names are not empty, none stands twice, and none is {' or '.join(TAKEN)}")


def names() -> list[str]:
    """The names of all sources: the built-in ones and those of installed plugins."""
    package = importlib.import_module("gpupipe.sources")
    builtin = {m.name for m in pkgutil.iter_modules(package.__path__)}
    return sorted(builtin | {e.name for e in entry_points(group=GROUP)})


def find(name: str) -> type[Source]:
    """The class of the source called `name`: `gpupipe/sources/NAME.py`, else the entry point NAME in the group `gpupipe.sources`.

    Raises KeyError with a message that suggests the nearest name.
    """
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"gpupipe.sources.{name}"):
        module = importlib.import_module(f"gpupipe.sources.{name}")
        return getattr(module, "".join(part.capitalize() for part in name.split("_")))  # type: ignore[no-any-return]  # one class of its name a file
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()  # type: ignore[no-any-return]  # a plugin's word
    raise KeyError(f"unknown source '{name}'{did_you_mean(name, names())}")
