"""A pipeline: the steps of a YAML list, each checked against the output of the one before it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.dataset.spec import Sizes
from gpupipe.errors import ConfigError, Problem, StepError, did_you_mean, nearest, shown
from gpupipe.pipeline import step
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import (
    FLOATS,
    NoLowering,
    Params,
    SampleIncompatible,
    Spec,
    Step,
    StepIncompatible,
)
from gpupipe.runtime import plugins
from gpupipe.sampling import draws
from gpupipe.schema import builtin_configs, yaml_parser
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.validation_errors import to_problems


@dataclass(frozen=True)
class Entry:
    """One step at its position in the pipeline, on one field.

    Attributes:
        name: The step's name in YAML.
        key: The name, with a number if the step occurs again: "random_affine", "random_affine_2".
            It seeds the draws, so all fields that a step works on share them.
        step: The step, its short forms written out.
        given: Shape, dtype and layout of the step's input.
        made: Shape, dtype and layout of the step's output.
        where: The position in the YAML, for messages.
        field: The field that the step works on.

    """

    name: str
    key: str
    step: Step
    given: Spec
    made: Spec
    where: str
    field: str

    def parameters(self, seed: int, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Draw the step's parameters for a batch.

        Args:
            seed: The loader's seed.
            epoch: The epoch, from 0.
            ids: The samples' rows in the index, int64 (B,).

        Returns:
            Arrays by name, each with B as its first axis.

        Raises:
            StepError: If the step's `sample` raises, or returns arrays of another length.

        """
        uniform = draws.uniform(seed, epoch, ids, draws.stream(self.key), self.step.lanes)
        with self._blamed("sample()"):
            sampled = self.step.sample(uniform)
        for name, values in sampled.items():
            if np.ndim(values) == 0 or len(values) != len(ids):
                shape, count = np.shape(values), len(ids)
                raise self._wrong(
                    f"its sample() made '{name}' of shape {shape} for {count} samples"
                )
        return sampled

    def lower(self, image: Primitives, parameters: Params) -> None:
        """Apply the step to a batch by calling primitives of a back end.

        Raises:
            StepError: If the step's code fails.
            NoLowering: If the step does not run on that back end.
            SampleIncompatible: If it cannot process a sample.

        """
        with self._blamed("lower()"):
            self.step.lower(image, parameters)

    def torch(self, image: Any, parameters: Params) -> Any:
        """Apply the step to one image in torch, and check the result against the step's spec.

        Raises:
            StepError: If the step's code fails, or its result differs from its spec.
            NoLowering: If the step does not run in torch.
            SampleIncompatible: If it cannot process the image.
            OSError, RuntimeError, ValueError: From the decoder, if the bytes are no image.

        """
        try:
            output = self.step.torch(image, parameters)
        except Exception:  # a context manager around each call would take more time than some steps
            decode_errors = (OSError, RuntimeError, ValueError) if self.given.encoded else ()
            with self._blamed("torch()", *decode_errors):
                raise
        if differs := self.made.differs(output, self._sizes):
            raise self._wrong(f"its torch() made {differs}")
        return output

    @cached_property
    def _sizes(self) -> Sizes:
        return self.made.canonical_sizes

    def dumped(self) -> dict[str, Any]:
        """Return the step's parameters as JSON values; raise StepError if that fails."""
        with self._blamed("model_dump()"):
            return self.step.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return the parameters that count for the fingerprint; raise StepError if that fails.

        Parameters in `Step.later` that have their defaults are left out.
        """
        fields = type(self.step).model_fields
        return {
            name: value
            for name, value in self.dumped().items()
            if name not in self.step.later or value != fields[name].default
        }

    def _blamed(self, call: str, *passed: type[Exception]) -> AbstractContextManager[None]:
        passed = (NoLowering, SampleIncompatible, *passed)
        return plugins.blamed(self.key, type(self.step), self.where, call, *passed)

    def _wrong(self, what: str) -> StepError:
        return plugins.step_wrong(self.key, type(self.step), self.where, what)


IMAGE: Mapping[str, Spec] = {"image": Spec()}
"""The fields of a sample that consists of one image file."""


@dataclass(frozen=True)
class Pipeline:
    """The checked steps of a config, in order.

    Attributes:
        name: The pipeline's name, or where its list is.
        entries: The steps, one entry per field that a step works on.
        fields: The spec of each field before the first step, the main field first.

    """

    name: str
    entries: tuple[Entry, ...]
    fields: Mapping[str, Spec] = field(default_factory=lambda: IMAGE)

    @property
    def main(self) -> str:
        """The field that a step works on unless it has `on:`."""
        return next(iter(self.fields))

    @property
    def made(self) -> Spec:
        """Shape, dtype and layout of the main field after the last step."""
        return self.made_of(self.main)

    def made_of(self, name: str) -> Spec:
        """Return shape, dtype and layout of a field after the last step."""
        return next((e.made for e in reversed(self.entries) if e.field == name), self.fields[name])

    def on(self, name: str) -> list[Entry]:
        """Return the steps on a field, in order."""
        return [e for e in self.entries if e.field == name]

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and their parameters, equal for two files that mean the same."""
        content = [
            [e.key, e.identity(), *([e.field] if e.field != self.main else [])]
            for e in self.entries
        ]
        return hashlib.blake2b(
            json.dumps(content, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


def find(name: str, beside: Path | None) -> Document:
    """Read the pipeline file called `name`.

    Args:
        name: A path, or NAME for `pipelines/NAME.yaml` in the working directory, then in `beside`
            or its parent folder, then among the shipped ones.
        beside: The config file's folder; None for a config without a file.

    """
    return yaml_parser.read(builtin_configs.locate("pipelines", name, beside))


def build(
    name: str,
    document: Document,
    loc: Loc = (),
    fields: Mapping[str, Spec] = IMAGE,
    masks: Sequence[str] = (),
) -> Pipeline:
    """Build the pipeline from the list of steps at `loc` of a document.

    Args:
        name: The pipeline's name.
        document: The YAML document.
        loc: The path of keys to the list.
        fields: The spec of each field before the first step, the main field first.
        masks: The fields that hold masks, on which steps use nearest pixels.

    Raises:
        ConfigError: With all mistakes in the list.

    """
    steps = document.at(loc)
    needed = any(spec.encoded for spec in fields.values())
    if not isinstance(steps, list) or (needed and not steps):
        what = "this is no list" if steps else "there is no step"
        raise ConfigError(
            [Problem(document.where(loc), f"{what}: a pipeline is a list of steps, {_SHAPE}")]
        )
    problems: list[Problem] = []
    parsed = [_parse(item, document, (*loc, i), problems, fields) for i, item in enumerate(steps)]
    entries = _chain(parsed, fields, masks, problems)
    if problems:
        raise ConfigError(problems)
    return Pipeline(name, tuple(entries), dict(fields))


_SHAPE = "each '- name: {parameter: value}' or '- name'"


@dataclass(frozen=True)
class _Parsed:
    """An item of the list, and the fields that it works on; `step` is None if it is invalid."""

    name: str
    step: Step | None
    where: str
    on: tuple[str, ...]


def _parse(
    item: Any, document: Document, loc: Loc, problems: list[Problem], fields: Mapping[str, Spec]
) -> _Parsed:
    """Parse one item of the list; append its mistakes to `problems`."""
    name, given = _named(item)
    where = document.where((*loc, name) if isinstance(item, dict) and name else loc, of_key=True)
    on = next(iter(fields))
    if isinstance(given, dict) and "on" in given:
        on, given = given["on"], {k: v for k, v in given.items() if k != "on"}
    targets = _targets(on, fields, document.where((*loc, name, "on")), problems)
    wrong = _Parsed(name, None, where, targets or tuple(fields))
    if not name:
        if item is not UNRESOLVED:
            problems.append(Problem(where, _no_step(item)))
        return wrong
    try:
        model = step.find(name)
    except LookupError as e:
        problems.append(Problem(where, e.args[0]))
        return wrong
    try:
        with plugins.blamed(name, model, where, "validation", pydantic.ValidationError):
            checked = model.model_validate({} if given is None else given)
        return _Parsed(name, checked, where, targets) if targets else wrong
    except pydantic.ValidationError as e:
        problems.extend(to_problems(e, model, document, (*loc, name), prefix=name))
        return wrong


def _named(item: Any) -> tuple[str, Any]:
    """Return an item's name and parameters; "" if it has no single name."""
    if isinstance(item, str):
        return item, None
    return next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else ("", None)


def _no_step(item: Any) -> str:
    if isinstance(item, dict) and item:
        return (
            f"one step has {len(item)} names ({', '.join(item)}): begin each step with a dash, "
            "and indent its parameters below its name"
        )
    return (
        f"a step is {'empty' if item is None else shown(item)}, but should be '- name: "
        f"{{parameter: value}}' or '- name'"
    )


def _targets(
    on: Any, fields: Mapping[str, Spec], where: str, problems: list[Problem]
) -> tuple[str, ...]:
    """Return the fields that `on:` names; () if one is unknown, which `problems` then holds."""
    if on is UNRESOLVED:
        return ()
    names = [on] if isinstance(on, str) else on
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        problems.append(
            Problem(
                where,
                f"on is {shown(on)}, but should be the name of a field, or a list of names: "
                f"{', '.join(fields)}",
            )
        )
        return ()
    unknown = [n for n in names if n not in fields]
    problems.extend(
        Problem(where, f"on: there is no field '{n}'{did_you_mean(n, fields)}") for n in unknown
    )
    return () if unknown else tuple(dict.fromkeys(names))


def _chain(
    parsed: Sequence[_Parsed],
    fields: Mapping[str, Spec],
    masks: Sequence[str],
    problems: list[Problem],
) -> list[Entry]:
    """Check each step against the output of the one before it.

    A step that does not fit is a problem; the next one is checked as if it were not there.
    """
    entries: list[Entry] = []
    seen = Counter[str]()
    specs = {name: _start(name, spec, parsed, problems) for name, spec in fields.items()}
    for p in parsed:
        outcomes = [
            _entry(p, name, given, name in masks, parsed, problems)
            for name in p.on
            if (given := specs[name]) is not None
        ]
        seen[p.name] += any(isinstance(o, Entry) for o in outcomes)
        key = p.name if seen[p.name] == 1 else f"{p.name}_{seen[p.name]}"
        for name, o in zip([n for n in p.on if specs[n] is not None], outcomes, strict=True):
            if isinstance(o, Entry):
                entries.append(replace(o, key=key))
                specs[name] = o.made
            else:
                specs[name] = o
    return entries


def _entry(
    p: _Parsed,
    name: str,
    given: Spec,
    mask: bool,
    parsed: Sequence[_Parsed],
    problems: list[Problem],
) -> Entry | Spec | None:
    """Return a step's entry on one field.

    If the step is invalid or does not fit, return the spec with which checking goes on; None if
    that cannot be guessed.
    """
    if p.step is None:
        return _after_wrong(p.name, given)
    step = _for_mask(p.step) if mask else p.step
    try:
        with plugins.blamed(p.name, type(step), p.where, "spec()", StepIncompatible):
            step = step.fitted(given)
            output = _checked(step.spec(given))
        return Entry(p.name, p.name, step, given, output, p.where, name)
    except StepIncompatible as e:
        later = (
            next((q.name for q in parsed if name in q.on and _decodes(q)), None)
            if given.encoded
            else None
        )
        why = f"what reaches it are still encoded bytes: move it after '{later}'" if later else e
        of = f" on {name}" if len(p.on) > 1 else ""
        problems.append(Problem(p.where, f"{p.name} cannot stand here{of}: {why}"))
        return given


_OF_MASKS = {"interpolation": "nearest", "antialias": False, "fill": (0.0,)}


def _for_mask(step: Step) -> Step:
    """Return the step as it works on a mask, whose values are class numbers.

    It takes nearest pixels and does not interpolate. Pixels outside the image are class 0.
    """
    changed = {name: value for name, value in _OF_MASKS.items() if name in type(step).model_fields}
    return step.model_copy(update=changed) if changed else step


def _start(
    name: str, spec: Spec, parsed: Sequence[_Parsed], problems: list[Problem]
) -> Spec | None:
    """Return the spec before the first step on a field.

    If no step decodes the field, report that once, and not for every step that needs pixels.
    """
    if not spec.encoded or any(name in p.on and (p.step is None or _decodes(p)) for p in parsed):
        return spec
    main = all(name in p.on for p in parsed)
    write = (
        "'- decode' as the first step"
        if main
        else f"'- decode: {{on: {name}}}' before the steps on it"
    )
    problems.append(Problem(parsed[0].where, f"no step decodes the {name}: write {write}"))
    return Spec(encoded=False)


def _checked(made: object) -> Spec:
    """Return what a step's spec() returned; raise TypeError if it is no Spec."""
    if not isinstance(made, Spec):
        raise TypeError(f"it must return a Spec, and not {shown(made)}")
    return made


def _decodes(p: _Parsed) -> bool:
    """Return whether a step turns encoded bytes into pixels."""
    if p.step is None:
        return False
    try:
        with plugins.blamed(p.name, type(p.step), p.where, "spec()", StepIncompatible):
            return not _checked(p.step.spec(Spec())).encoded
    except StepIncompatible:
        return False


def _after_wrong(name: str, spec: Spec) -> Spec | None:
    """Guess the output of an invalid step, so that later steps are not blamed for it.

    Returns None if there is no guess.
    """
    meant = name if name in step.names() else nearest(name, step.names())
    vague = replace(spec, height=None, width=None, at_least=(1, 1))
    if meant in ("decode", "grayscale"):
        return replace(vague, encoded=spec.encoded and meant != "decode", channels=None)
    if meant == "to_dtype":
        return replace(vague, dtype=FLOATS[0] if spec.dtype not in FLOATS else spec.dtype)
    return vague if meant in step.builtin() else None
