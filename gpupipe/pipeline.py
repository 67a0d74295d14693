"""A pipeline: the steps of a YAML list, checked one behind the other."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe import draws, shipped, step, yamlfile
from gpupipe.complaints import complaints
from gpupipe.errors import ConfigError, Problem, nearest, shown
from gpupipe.step import FLOATS, Refused, Spec, Step
from gpupipe.yamlfile import UNRESOLVED, Document, Loc


@dataclass(frozen=True)
class Entry:
    """One step in its place: `key` ("random_affine", and "random_affine_2" for the second) names its draws."""

    name: str
    key: str
    step: Step
    given: Spec
    made: Spec
    where: str

    def parameters(self, seed: int, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The step's parameters for these samples: arrays whose first axis is len(ids)."""
        return self.step.sample(draws.uniform(seed, epoch, ids, draws.stream(self.key), self.step.lanes))


@dataclass(frozen=True)
class Pipeline:
    """Steps in order, with what flows between them."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def made(self) -> Spec:
        """What comes out of the last step."""
        return self.entries[-1].made

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and all their parameters: the same for two files that mean the same."""
        content = [[e.key, e.step.model_dump(mode="json")] for e in self.entries]
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def find(name: str, beside: Path | None) -> Document:
    """The pipeline file called `name`: a path, else `pipelines/NAME.yaml` here or beside the config, else a shipped one."""
    return yamlfile.read(shipped.locate("pipelines", name, beside))


def build(name: str, document: Document, loc: Loc = ()) -> Pipeline:
    """The pipeline in the list at `loc` of a document. Raises ConfigError with all that is wrong in it."""
    steps = document.at(loc)
    if not isinstance(steps, list) or not steps:
        what = "this is no list" if steps else "there is no step"
        raise ConfigError([Problem(document.where(loc), f"{what}: a pipeline is a list of steps, {_SHAPE}")])
    problems: list[Problem] = []
    parsed = [_parse(item, document, (*loc, i), problems) for i, item in enumerate(steps)]
    entries = _chain(parsed, problems)
    if problems:
        raise ConfigError(problems)
    return Pipeline(name, tuple(entries))


_SHAPE = "each '- name: {parameter: value}' or '- name'"


@dataclass(frozen=True)
class _Parsed:
    """An item of the list; `step` is None where it is wrong."""

    name: str
    step: Step | None
    where: str


def _parse(item: Any, document: Document, loc: Loc, problems: list[Problem]) -> _Parsed:
    """One item of the list as a step; where it is wrong, `problems` grows."""
    name, given = _named(item)
    where = document.where((*loc, name) if isinstance(item, dict) and name else loc, of_key=True)
    wrong = _Parsed(name, None, where)
    if not name:
        if item is not UNRESOLVED:
            problems.append(Problem(where, _no_step(item)))
        return wrong
    try:
        model = step.find(name)
    except KeyError as e:
        problems.append(Problem(where, e.args[0]))
        return wrong
    try:
        return _Parsed(name, model.model_validate({} if given is None else given), where)
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
        return f"one step has {len(item)} names ({', '.join(item)}): begin each step with a dash, and indent its parameters below its name"
    return f"a step is {'empty' if item is None else shown(item)}, but should be '- name: {{parameter: value}}' or '- name'"


def _chain(parsed: Sequence[_Parsed], problems: list[Problem]) -> list[Entry]:
    """The steps with what flows between them; a step that cannot follow is a problem, and the next is checked as if it were not there."""
    entries: list[Entry] = []
    spec, seen = _start(parsed, problems), Counter[str]()
    for p in parsed:
        if spec is None:
            break
        if p.step is None:
            spec = _after_wrong(p.name, spec)
            continue
        try:
            made = p.step.spec(spec)
        except Refused as e:
            later = next((q.name for q in parsed if q.step and _decodes(q.step)), None) if spec.encoded else None
            why = f"what reaches it are still encoded bytes: move it behind '{later}'" if later else e
            problems.append(Problem(p.where, f"{p.name} cannot stand here: {why}"))
            continue
        seen[p.name] += 1
        key = p.name if seen[p.name] == 1 else f"{p.name}_{seen[p.name]}"
        entries.append(Entry(p.name, key, p.step, spec, made, p.where))
        spec = made
    return entries


def _start(parsed: Sequence[_Parsed], problems: list[Problem]) -> Spec | None:
    """What goes into the first step. Where nothing decodes, that is one problem, and not one for every step that needs pixels."""
    if any(p.step is None or _decodes(p.step) for p in parsed):
        return Spec()
    problems.append(Problem(parsed[0].where, "no step decodes the image: write '- decode' as the first step"))
    return Spec(encoded=False)


def _decodes(candidate: Step) -> bool:
    try:
        return not candidate.spec(Spec()).encoded
    except Refused:
        return False


def _after_wrong(name: str, spec: Spec) -> Spec | None:
    """What probably comes out of a step that is wrong itself, so that it does not put the steps behind it in the wrong; None: no telling."""
    meant = name if name in step.names() else nearest(name, step.names())
    vague = replace(spec, height=None, width=None, at_least=(1, 1))
    if meant in ("decode", "grayscale"):
        return replace(vague, encoded=spec.encoded and meant != "decode", channels=None)
    if meant == "to_dtype":
        return replace(vague, dtype=FLOATS[0] if spec.dtype not in FLOATS else spec.dtype)
    return vague if meant in step.builtin() else None
