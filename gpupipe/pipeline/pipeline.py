"""A pipeline: the steps of a YAML list, checked one behind the other."""

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
from gpupipe.pipeline.step import (
    FLOATS,
    DaliImage,
    NoLowering,
    Params,
    SampleIncompatible,
    Spec,
    Step,
    StepIncompatible,
)
from gpupipe.runtime import plugins
from gpupipe.sampling import draws
from gpupipe.schema import builtin_configs
from gpupipe.schema import document as yamlfile
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.validation_errors import complaints


@dataclass(frozen=True)
class Entry:
    """One step in its place, on one field: `key` ("random_affine", and "random_affine_2" for the
    second) names its draws, which all fields share.
    """

    name: str
    key: str
    step: Step
    given: Spec
    made: Spec
    where: str
    field: str

    def parameters(self, seed: int, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The step's parameters for these samples: arrays whose first axis is len(ids).

        Raises StepError.
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

    def dali(self, image: DaliImage, parameters: Params) -> None:
        """Carry out the step on a batch in DALI.

        Raises StepError, NoLowering, SampleIncompatible.
        """
        with self._blamed("dali()"):
            self.step.dali(image, parameters)

    def torch(self, image: Any, parameters: Params) -> Any:
        """Carry out the step on one image. Raises StepError, NoLowering, SampleIncompatible.

        From a step that decodes, also what its decoder raises of bytes that are no image.
        """
        try:
            made = self.step.torch(image, parameters)
        except Exception:  # a context manager around each call would take more time than some steps
            of_bytes = (OSError, RuntimeError, ValueError) if self.given.encoded else ()
            with self._blamed("torch()", *of_bytes):
                raise
        if differs := self.made.differs(made, self._sizes):
            raise self._wrong(f"its torch() made {differs}")
        return made

    @cached_property
    def _sizes(self) -> Sizes:
        return self.made.canonical_sizes

    def dumped(self) -> dict[str, Any]:
        """The step's parameters as JSON takes them. Raises StepError."""
        with self._blamed("model_dump()"):
            return self.step.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """What of the parameters a fingerprint holds. Raises StepError."""
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
"""The fields of a sample that is an image file and no more."""


@dataclass(frozen=True)
class Pipeline:
    """Steps in order, with what flows between them.

    fields: what each field of a sample is when the first step gets it, the main field first.
    """

    name: str
    entries: tuple[Entry, ...]
    fields: Mapping[str, Spec] = field(default_factory=lambda: IMAGE)

    @property
    def main(self) -> str:
        """The field that steps work on where they name none."""
        return next(iter(self.fields))

    @property
    def made(self) -> Spec:
        """What comes out of the last step on the main field."""
        return self.made_of(self.main)

    def made_of(self, name: str) -> Spec:
        """What comes out of the last step on a field."""
        return next((e.made for e in reversed(self.entries) if e.field == name), self.fields[name])

    def on(self, name: str) -> list[Entry]:
        """The steps on a field, in order."""
        return [e for e in self.entries if e.field == name]

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and all their parameters: the same for two files that mean the
        same.
        """
        content = [
            [e.key, e.identity(), *([e.field] if e.field != self.main else [])]
            for e in self.entries
        ]
        return hashlib.blake2b(
            json.dumps(content, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


def find(name: str, beside: Path | None) -> Document:
    """The pipeline file called `name`: a path, else `pipelines/NAME.yaml` here or beside the
    config, else a shipped one.
    """
    return yamlfile.read(builtin_configs.locate("pipelines", name, beside))


def build(
    name: str,
    document: Document,
    loc: Loc = (),
    fields: Mapping[str, Spec] = IMAGE,
    masks: Sequence[str] = (),
) -> Pipeline:
    """The pipeline in the list at `loc` of a document, over these fields, of which some are masks.

    Raises ConfigError with all that is wrong in it.
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
    """An item of the list, and the fields that it works on; `step` is None where it is wrong."""

    name: str
    step: Step | None
    where: str
    on: tuple[str, ...]


def _parse(
    item: Any, document: Document, loc: Loc, problems: list[Problem], fields: Mapping[str, Spec]
) -> _Parsed:
    """One item of the list as a step; where it is wrong, `problems` grows."""
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
        problems.extend(complaints(e, model, document, (*loc, name), prefix=name))
        return wrong


def _named(item: Any) -> tuple[str, Any]:
    """An item's name and parameters; no name where it has not one."""
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
    """The fields that a step names; where one is unknown, none, and `problems` grows."""
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
    """The steps with what flows between them; a step that cannot follow is a problem, and the next
    is checked as if it were not there.
    """
    entries: list[Entry] = []
    seen = Counter[str]()
    specs = {name: _start(name, spec, parsed, problems) for name, spec in fields.items()}
    for p in parsed:
        found = [
            _entry(p, name, given, name in masks, parsed, problems)
            for name in p.on
            if (given := specs[name]) is not None
        ]
        seen[p.name] += any(isinstance(f, Entry) for f in found)
        key = p.name if seen[p.name] == 1 else f"{p.name}_{seen[p.name]}"
        for name, f in zip([n for n in p.on if specs[n] is not None], found, strict=True):
            if isinstance(f, Entry):
                entries.append(replace(f, key=key))
                specs[name] = f.made
            else:
                specs[name] = f
    return entries


def _entry(
    p: _Parsed,
    name: str,
    given: Spec,
    mask: bool,
    parsed: Sequence[_Parsed],
    problems: list[Problem],
) -> Entry | Spec | None:
    """A step on one field; where it is wrong or cannot stand there, what the next step gets, or
    None: no telling.
    """
    if p.step is None:
        return _after_wrong(p.name, given)
    step = _for_mask(p.step) if mask else p.step
    try:
        with plugins.blamed(p.name, type(step), p.where, "spec()", StepIncompatible):
            step = step.fitted(given)
            made = _checked(step.spec(given))
        return Entry(p.name, p.name, step, given, made, p.where, name)
    except StepIncompatible as e:
        later = (
            next((q.name for q in parsed if name in q.on and _decodes(q)), None)
            if given.encoded
            else None
        )
        why = f"what reaches it are still encoded bytes: move it behind '{later}'" if later else e
        of = f" on {name}" if len(p.on) > 1 else ""
        problems.append(Problem(p.where, f"{p.name} cannot stand here{of}: {why}"))
        return given


_OF_MASKS = {"interpolation": "nearest", "antialias": False, "fill": (0.0,)}


def _for_mask(step: Step) -> Step:
    """The step as it works on a mask, whose numbers are classes: no pixel is made between two
    others, and what is outside the image is class 0.
    """
    changed = {name: value for name, value in _OF_MASKS.items() if name in type(step).model_fields}
    return step.model_copy(update=changed) if changed else step


def _start(
    name: str, spec: Spec, parsed: Sequence[_Parsed], problems: list[Problem]
) -> Spec | None:
    """What goes into the first step on a field.

    Where nothing decodes, that is one problem, and not one for every step that needs pixels.
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
    """What a step's spec() returned. Raises TypeError where it is none."""
    if not isinstance(made, Spec):
        raise TypeError(f"it must return a Spec, and not {shown(made)}")
    return made


def _decodes(p: _Parsed) -> bool:
    """Whether a step makes images of encoded bytes."""
    if p.step is None:
        return False
    try:
        with plugins.blamed(p.name, type(p.step), p.where, "spec()", StepIncompatible):
            return not _checked(p.step.spec(Spec())).encoded
    except StepIncompatible:
        return False


def _after_wrong(name: str, spec: Spec) -> Spec | None:
    """What probably comes out of a step that is wrong itself, so that it does not put the steps
    behind it in the wrong; None: no telling.
    """
    meant = name if name in step.names() else nearest(name, step.names())
    vague = replace(spec, height=None, width=None, at_least=(1, 1))
    if meant in ("decode", "grayscale"):
        return replace(vague, encoded=spec.encoded and meant != "decode", channels=None)
    if meant == "to_dtype":
        return replace(vague, dtype=FLOATS[0] if spec.dtype not in FLOATS else spec.dtype)
    return vague if meant in step.builtin() else None
