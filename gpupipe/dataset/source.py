"""What a source is, and where sources are found.

A source says which samples exist and where their bytes are. It answers with an Index.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import pydantic
from pydantic import Field

from gpupipe.dataset.index import Index, Rows
from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.runtime import plugins
from gpupipe.schema.field_types import WHOLE

MAX_PIXELS = 178_956_970
"""Above it Pillow, too, takes an image for one that is made to exhaust the memory."""
TAKEN = ("label", "id")
"""Names in a batch that no field and no value may have."""
Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is (None: not known).
"""


def quiet(what: str, done: int, total: int | None) -> None:
    """The Progress that shows nothing."""


class Population(ABC):
    """Which samples each epoch has, where a source does not have all of its samples at all times.

    What it pins stays readable until it is released.
    """

    def __init__(self) -> None:
        self.let_go: Callable[[set[int]], None] = lambda files: None
        """Called with numbers of files (Index.columns, SpanColumn.files) that nobody may hold open
        any more; the loader sets it.
        """

    @abstractmethod
    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        """The rows of the index that an epoch has, ascending, int64 (n,); settled, and pinned, when
        they are asked for first.

        problem: why so many samples would not do, or "": until then it waits. Raises DataError
        where there is no hope.
        """

    @abstractmethod
    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        """Whether `ids` returns at once; if so, the rows of the epoch are settled and pinned. Never
        waits.

        Raises DataError where there is no hope.
        """

    @abstractmethod
    def generation(self, epoch: int) -> int | None:
        """What `resume` takes to have the same rows again; None where they are not settled yet."""

    @abstractmethod
    def resume(self, epoch: int, generation: int) -> None:
        """Settle the rows of an epoch. Raises StateError where they cannot be had again."""

    @abstractmethod
    def release(self, keep: Callable[[int], bool]) -> None:
        """Let go of the epochs that are not to be kept."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all. May be called twice."""


class Source(pydantic.BaseModel):
    """The base of all sources: a frozen model of what stands under `data:` in the YAML, beside
    `source: NAME`.

    masks: fields whose numbers are classes, such as segmentation masks: steps take the nearest
    pixel, and fill with 0. max_pixels: image files of more pixels are broken samples, which the
    header tells before
      anything is decoded; null: no limit. By default Pillow's own.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    grows: ClassVar[bool] = False
    """Whether epochs have other samples than those before them: see `population`."""
    separate_files: ClassVar[bool] = True
    """Whether each image is a file of its own, and not a part of a larger one."""

    masks: tuple[str, ...] = ()
    max_pixels: Annotated[int, Field(ge=1), WHOLE] | None = MAX_PIXELS

    @abstractmethod
    def index(self, progress: Progress = quiet) -> Index:
        """The samples, from the cached index where it still holds, else scanned. May fetch the data
        first.

        Raises DataError where there is nothing to read, FetchError where fetching failed.
        """

    def specs(self) -> dict[str, Spec]:
        """What each field of a sample is when the first step gets it; the first field is what steps
        work on by default. Raises DataError.
        """
        return {"image": Spec()}

    def population(self, index: Index, rank: int, world_size: int, seed: int) -> Population | None:
        """Which of the index's samples each epoch has, for one rank's loader; None: always all of
        them.
        """
        return None

    def available(self, index: Index) -> Rows | None:
        """The rows of the index that can be read now, for who wants some and not an epoch; None:
        all. Raises DataError where there is none.
        """
        return None

    def absent(self) -> str:
        """Why the data is not there yet ("... will be fetched"), or "" where it is."""
        return ""


def check_names(fields: Sequence[str], values: Sequence[str]) -> None:
    """Raises ValueError where a field or value cannot be called so in a batch."""
    every = [*fields, *values]
    for name in every:
        if name in TAKEN or not name or every.count(name) > 1:
            raise ValueError(
                f"'{name}' cannot be the name of a field or value: names are not empty, "
                f"none stands twice, and none is {' or '.join(TAKEN)}"
            )


def names() -> list[str]:
    """The names of all sources: the built-in ones and those of installed plugins."""
    package = importlib.import_module("gpupipe.sources")
    builtin = {m.name for m in pkgutil.iter_modules(package.__path__)}
    return sorted(builtin | plugins.names(plugins.SOURCES))


def find(name: str) -> type[Source]:
    """The class of the source called `name`: `gpupipe/sources/NAME.py`, else the entry point NAME
    in the group `gpupipe.sources`.

    Raises LookupError, which suggests the nearest name, or names the package that is broken.
    """
    if (
        name.isidentifier()
        and not name.startswith("_")
        and importlib.util.find_spec(f"gpupipe.sources.{name}")
    ):
        module = importlib.import_module(f"gpupipe.sources.{name}")
        # one class of its name a file
        class_name = "".join(part.capitalize() for part in name.split("_"))
        return getattr(module, class_name)  # type: ignore[no-any-return]
    # no instance is made
    if found := plugins.find(plugins.SOURCES, name, Source):  # type: ignore[type-abstract]
        return found
    raise LookupError(f"unknown source '{name}'{did_you_mean(name, names())}")
