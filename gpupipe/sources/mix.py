"""mix: the samples of several sources, in proportions that hold in every epoch."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, WithJsonSchema

from gpupipe.dataset.columns import join_strings
from gpupipe.dataset.file_columns import join_columns
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.labels import make_unlabelled
from gpupipe.dataset.population import Growing
from gpupipe.dataset.source import SOURCES, Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, did_you_mean
from gpupipe.sampling.selection import Mixture, Stop

_OF_ALL = tuple(Source.model_fields)
"""Options that a part cannot set: the mix sets them for all parts."""


class MixPart(pydantic.BaseModel):
    """A source that is mixed with others.

    Attributes:
        source_name: The name of the source.
        source: The source itself, an instance of the class with that name.
        weight: This part's share of the samples in an epoch, relative to the weights of the others.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    source_name: str
    source: Any
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)


def _build_part(options: Any, info: pydantic.ValidationInfo) -> Any:
    """Build a MixPart from {source: NAME, weight: NUMBER, ...}; return a MixPart unchanged.

    Raises ValueError if the options are invalid.
    """
    if isinstance(options, MixPart):
        return options
    if not isinstance(options, dict) or not isinstance(options.get("source"), str):
        raise ValueError("should be a source, such as {source: folder, root: PATH, weight: 2}")
    name = options["source"]
    if name == Mix.name:
        raise ValueError("a mix cannot be a part of a mix: write its parts here")
    common = next((key for key in _OF_ALL if key in options), None)
    if common is not None:
        raise ValueError(f"{common}: it is the same for all parts: write it beside data.parts")
    rest = {k: v for k, v in options.items() if k not in ("source", "weight")}
    try:
        model = SOURCES.find(name)
        if issubclass(model, Growing):
            raise ValueError(f"'{name}' has other samples in each epoch, so it cannot be mixed")
        part = {"source_name": name, "source": model.model_validate(rest, context=info.context)}
        return MixPart.model_validate(part | {k: v for k, v in options.items() if k == "weight"})
    except LookupError as e:
        raise ValueError(e.args[0]) from e
    except pydantic.ValidationError as e:
        error = e.errors(include_url=False)[0]
        key = ".".join(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            raise ValueError(f"{key}: unknown key{did_you_mean(key, model.model_fields)}") from e
        message = error["msg"].removeprefix("Value error, ")
        raise ValueError(f"{key}: {message}" if key else message) from e


_PART_SCHEMA = {
    "type": "object",
    "properties": {
        "source": {"type": "string"},
        "weight": {"type": "number", "exclusiveMinimum": 0},
    },
    "required": ["source"],
}

_Part = Annotated[MixPart, BeforeValidator(_build_part), WithJsonSchema(_PART_SCHEMA)]


class Mix(Source):
    """The samples of several sources, in the proportions of their weights.

    Each part has a fixed number of samples in an epoch. No sample of a part comes again before all
    others of the part have come. Any run of consecutive samples, such as a batch, has the
    proportions too: with n parts, the count of each part is off by at most n - 1 samples.

    Attributes:
        parts: The sources by name. Each has a `weight`, by default 1, beside its own options.
        stop: When an epoch ends. "first": when the first part is used up. "all": when each
            part is used up at least once. "never": after `loader.epoch_size` samples. If
            `loader.epoch_size` is set, it also replaces "first" and "all".
        classes: "join": classes with the same name are one class. The classes of the first part
            keep their numbers, and new ones follow. "keep": the classes of different parts stay
            apart, and are called PART/CLASS.
        origin: The name of a value to add to each batch: the number of each sample's part, from 0.
            null adds none.
    """

    name: ClassVar[str] = "mix"
    separate_files: ClassVar[bool] = False
    delivers_labels: ClassVar[bool] = True

    parts: dict[str, _Part] = Field(min_length=1)
    stop: Stop = "first"
    classes: Literal["join", "keep"] = "join"
    origin: str | None = None

    def specs(self) -> dict[str, Spec]:
        """Return the specs of the fields, by name. They are the same in all parts.

        Raises:
            DataError: A part has different fields.
        """
        (first, part), *others = self.parts.items()
        specs: dict[str, Spec] = part.source.specs()
        for name, other in others:
            theirs = other.source.specs()
            if list(theirs) != list(specs) or theirs != specs:
                raise DataError(
                    f"data.parts.{name}: its fields are {_describe(theirs)}, but those of {first} "
                    f"are {_describe(specs)}: all parts must have the same"
                )
        return specs

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples of all parts, one part after the other.

        Raises:
            DataError: A part cannot be read, or the parts do not fit together.
            FetchError: A download failed.
        """
        limits = {"max_pixels": self.max_pixels, "max_bytes": self.max_bytes}
        every = {
            name: part.source.model_copy(update=limits).index(progress)
            for name, part in self.parts.items()
        }
        indexes = list(every.values())
        classes, labels = self._join_classes(every)
        names = join_strings([index.names for index in indexes])
        columns = {}
        for field in indexes[0].columns:
            try:
                columns[field] = join_columns([index.columns[field] for index in indexes])
            except ValueError as e:
                raise DataError(f"data.parts: the field '{field}' must be {e}") from e
        counts = [len(index) for index in indexes]
        values = _join_values(every)
        if self.origin is not None:
            values[self.origin] = np.repeat(np.arange(len(indexes)), counts)
        joined = build("", names, labels, classes, columns=columns, values=values)
        digest = hashlib.blake2b(digest_size=16)
        for name, index in every.items():
            digest.update(f"{name}\0{index.fingerprint}\0".encode())
        digest.update(self.classes.encode())
        return replace(
            joined,
            fingerprint=digest.hexdigest(),
            note=", ".join(dict.fromkeys(index.note for index in indexes if index.note)),
            warning="; ".join(dict.fromkeys(index.warning for index in indexes if index.warning)),
            extra={"counts": counts},
        )

    def mixture(self, index: Index) -> Mixture | None:
        weights = tuple(part.weight for part in self.parts.values())
        return Mixture(tuple(self.parts), tuple(index.extra["counts"]), weights, self.stop)

    def list_parts(self) -> list[Source]:
        return [part.source for part in self.parts.values()]

    def release(self) -> None:
        for part in self.parts.values():
            part.source.release()

    def explain_absence(self) -> str:
        return next((why for p in self.parts.values() if (why := p.source.explain_absence())), "")

    def _join_classes(self, every: Mapping[str, Index]) -> tuple[list[str], NDArray[np.int64]]:
        lacking = [part for part, index in every.items() if not index.has_labels]
        if len(lacking) == len(every):
            labels, classes = make_unlabelled(sum(map(len, every.values())))
            return classes, labels
        if lacking:
            having = next(part for part in every if part not in lacking)
            raise DataError(
                f"data.parts.{lacking[0]}: its samples have no label, but those of {having} have: "
                "name the labels of each part, or write label: null in each"
            )
        numbers: dict[str, int] = {}
        parts = []
        for part, index in every.items():
            prefix = f"{part}/" if self.classes == "keep" else ""
            own = [numbers.setdefault(prefix + name, len(numbers)) for name in index.classes]
            parts.append(np.array(own, np.int64)[index.labels])
        return list(numbers), np.concatenate(parts)


def _describe(specs: Mapping[str, Spec]) -> str:
    return ", ".join(
        f"{name} ({'images' if spec.encoded else f'{spec.dtype} arrays'})"
        for name, spec in specs.items()
    )


def _join_values(every: Mapping[str, Index]) -> dict[str, NDArray[Any]]:
    (first, index), *others = every.items()
    for name, other in others:
        missing = sorted(index.values.keys() ^ other.values.keys())
        if missing:
            has, lacks = (first, name) if missing[0] in index.values else (name, first)
            raise DataError(
                f"data.parts.{lacks}: it has no value '{missing[0]}', but {has} has: all parts "
                "must have the same"
            )
        for value, array in index.values.items():
            if array.shape[1:] != other.values[value].shape[1:]:
                raise DataError(
                    f"data.parts.{name}: the value '{value}' has another shape than that of {first}"
                )
    return {
        value: np.concatenate([part.values[value] for part in every.values()])
        for value in index.values
    }
