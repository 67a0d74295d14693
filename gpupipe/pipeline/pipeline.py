"""Pipeline: the checked steps of a config, in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.entry import Entry

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
    def output_spec(self) -> Spec:
        """Shape, dtype and layout of the main field after the last step."""
        return self.output_spec_of(self.main)

    def output_spec_of(self, name: str) -> Spec:
        """Return shape, dtype and layout of a field after the last step."""
        return next(
            (e.output_spec for e in reversed(self.entries) if e.field == name), self.fields[name]
        )

    def entries_on(self, name: str) -> list[Entry]:
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
