"""A pipeline: the steps of a YAML list, checked one behind the other."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe import draws, shipped, step, yamlfile
from gpupipe.complaints import complaints
from gpupipe.errors import ConfigError, Problem
from gpupipe.step import Refused, Spec, Step
from gpupipe.yamlfile import Document, Loc


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
    steps = _at(document.data, loc)
    if not isinstance(steps, list) or not steps:
        raise ConfigError([Problem(document.where(loc), "a pipeline is a list of steps, each '- name: {parameter: value}' or '- name'")])
    problems: list[Problem] = []
    parsed = [_parse(item, document, (*loc, i), problems) for i, item in enumerate(steps)]
    entries = _chain([p for p in parsed if p], problems)
    if problems:
        raise ConfigError(problems)
    return Pipeline(name, tuple(entries))


@dataclass(frozen=True)
class _Parsed:
    name: str
    step: Step
    where: str


def _at(data: Any, loc: Loc) -> Any:
    for key in loc:
        data = data[key]
    return data


def _parse(item: Any, document: Document, loc: Loc, problems: list[Problem]) -> _Parsed | None:
    """One item of the list as a step; None where it is wrong, and then `problems` has grown."""
    name, given = _named(item)
    where = document.where((*loc, name) if isinstance(item, dict) and name else loc, of_key=True)
    if name is None:
        problems.append(Problem(where, "a step is '- name: {parameter: value}' or '- name': one name for each dash"))
        return None
    try:
        model = step.find(name)
    except KeyError as e:
        problems.append(Problem(where, e.args[0]))
        return None
    try:
        return _Parsed(name, model.model_validate({} if given is None else given), where)
    except pydantic.ValidationError as e:
        problems.extend(complaints(e, model, document, (*loc, name), prefix=name))
        return None


def _named(item: Any) -> tuple[str | None, Any]:
    if isinstance(item, str):
        return item, None
    if isinstance(item, dict) and len(item) == 1:
        ((name, given),) = item.items()
        return (name if isinstance(name, str) else None), given
    return None, None


def _chain(parsed: Sequence[_Parsed], problems: list[Problem]) -> list[Entry]:
    """The steps with what flows between them; a step that cannot follow is a problem, and the next is checked as if it were not there."""
    entries: list[Entry] = []
    spec, seen = Spec(), Counter[str]()
    for p in parsed:
        seen[p.name] += 1
        try:
            made = p.step.spec(spec)
        except Refused as e:
            problems.append(Problem(p.where, f"{p.name} cannot stand here: {e}"))
            continue
        key = p.name if seen[p.name] == 1 else f"{p.name}_{seen[p.name]}"
        entries.append(Entry(p.name, key, p.step, spec, made, p.where))
        spec = made
    if parsed and not problems and spec.encoded:
        problems.append(Problem(parsed[-1].where, "no step decodes the image: write a 'decode' step"))
    return entries
