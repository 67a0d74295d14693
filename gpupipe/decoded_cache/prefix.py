"""Finds the first steps of a field whose result the decoded cache can keep."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import takewhile

from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.plugins import is_foreign


@dataclass(frozen=True)
class Prefix:
    """The steps at the front of a field that make the same pixels in every epoch.

    Attributes:
        field: The field.
        entries: The steps: decode, and those after it that draw nothing and make uint8.
    """

    field: str
    entries: tuple[Entry, ...]

    @property
    def steps(self) -> list[list[object]]:
        """The steps and their parameters, as plain JSON."""
        return [[entry.name, entry.identity()] for entry in self.entries]

    @property
    def digest(self) -> bytes:
        """A hash of the field and its steps."""
        content = json.dumps([self.field, self.steps], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).digest()


def find_prefixes(pipeline: Pipeline) -> dict[str, Prefix]:
    """Return the prefix of each field of image files that has one, by field.

    Steps of other packages are not among them, since their version is not part of the cache's key.
    Nor are steps whose numbers a schedule changes.
    """
    prefixes = {}
    for name, spec in pipeline.fields.items():
        if not spec.encoded:
            continue
        of_phases = [phase.entries_on(name) for phase in pipeline.phases]
        common = takewhile(_are_equal, zip(*of_phases, strict=False))
        entries = tuple(takewhile(_can_be_kept, (same[0] for same in common)))
        if entries:
            prefixes[name] = Prefix(name, entries)
    return prefixes


def explain_refusal(pipeline: Pipeline) -> str:
    """Return why the decoded cache can keep nothing of a pipeline; "" if it can."""
    if find_prefixes(pipeline):
        return ""
    encoded = [name for name, spec in pipeline.fields.items() if spec.encoded]
    if not encoded:
        return "the samples are arrays, which need no decoding: remove it"
    entries = pipeline.entries_on(encoded[0])
    if not entries:
        return f"no step decodes the {encoded[0]}: remove it"
    first = entries[0]
    if is_foreign(type(first.step)):
        return f"{first.name} is a step of another package, whose pixels it cannot keep: remove it"
    return f"it keeps pixels of uint8, but {first.name} makes {first.output_spec.dtype}: remove it"


def _are_equal(entries: tuple[Entry, ...]) -> bool:
    """Whether a step is the same in all phases of the schedules."""
    first = entries[0]
    return all(e.name == first.name and e.identity() == first.identity() for e in entries)


def _can_be_kept(entry: Entry) -> bool:
    step, made = entry.step, entry.output_spec
    return (
        not is_foreign(type(step))
        and not step.runs_unknown_code
        and step.num_uniforms == 0
        and not made.encoded
        and made.dtype == "uint8"
        and made.layout == "CHW"
    )
