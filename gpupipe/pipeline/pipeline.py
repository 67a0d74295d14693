"""Pipeline: the checked steps of a config, in order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.schedules import Phased

IMAGE: Mapping[str, Spec] = {"image": Spec()}
"""The fields of a sample that consists of one image file."""


@dataclass(frozen=True)
class Pipeline(Phased):
    """The checked steps of a config, in order.

    If steps have schedules, `entries` have the numbers of epoch 0. The pipelines in `later` have
    the same steps on the same fields, and differ in numbers and sizes.

    Attributes:
        name: The pipeline's name; "inline" for a list in the config.
        entries: The steps, one entry per field that a step works on. The steps of views come last.
        fields: The spec of each field before the first step, the main field first.
        views: For each field that a view makes, the source field. The view's steps work on the
            output of the source field's steps.
        annotations: The spec of each field of annotations. They go through the steps of the image
            that `Annotation.of` names, without steps of their own.
        later: For each epoch in which numbers change, the pipeline from that epoch on, in order.
            Empty if there are no schedules.
    """

    name: str
    entries: tuple[Entry, ...]
    fields: Mapping[str, Spec] = field(default_factory=lambda: IMAGE)
    views: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Spec] = field(default_factory=dict)
    later: "Mapping[int, Pipeline]" = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The name of the main field, on which a step works unless it has `on:`."""
        return next(iter(self.fields))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of a batch's fields. Fields of views replace the field they are made from."""
        return tuple(output for name in self.fields for output in (self.views_of(name) or (name,)))

    @property
    def main_outputs(self) -> tuple[str, ...]:
        """The main field; if views are made from it, the fields of these views instead."""
        return self.views_of(self.main) or (self.main,)

    def views_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the fields that views make from the field `name`."""
        return self._views_by_source.get(name, ())

    @cached_property
    def _views_by_source(self) -> dict[str, tuple[str, ...]]:
        by_source: dict[str, tuple[str, ...]] = {}
        for view, source in self.views.items():
            by_source[source] = (*by_source.get(source, ()), view)
        return by_source

    def source_of(self, name: str) -> str:
        """Return the field from which a view is made; return the name of any other field itself."""
        return self.views.get(name, name)

    def annotations_of(self, name: str) -> dict[str, Spec]:
        """Return the specs of the annotations on the field `name`; of a view, its source's."""
        source = self.source_of(name)
        return {
            field: spec
            for field, spec in self.annotations.items()
            if spec.annotation is not None and spec.annotation.of == source
        }

    @cached_property
    def annotated(self) -> tuple[str, ...]:
        """The fields that have annotations on them, such as boxes."""
        return tuple(name for name in self.fields if self.annotations_of(name))

    def is_image_file(self, name: str) -> bool:
        """Return whether a field of a batch is made from image files."""
        return self.fields[self.source_of(name)].encoded

    @property
    def output_spec(self) -> Spec:
        """Shape, dtype and layout of the main field, or of its first view, after the last step."""
        return self.output_spec_of(self.main_outputs[0])

    def output_spec_of(self, name: str) -> Spec:
        """Return shape, dtype and layout of a field after its last step."""
        last = next((e.output_spec for e in reversed(self.entries) if e.field == name), None)
        if last is not None:
            return last
        return self.output_spec_of(self.views[name]) if name in self.views else self.fields[name]

    def entries_on(self, name: str) -> list[Entry]:
        """Return the steps on a field, in order; for a view, without those of its source field."""
        return list(self._entries_by_field.get(name, ()))

    def group_entries(
        self, alike: tuple[tuple[str, ...], ...]
    ) -> Mapping[str, Sequence[tuple[Entry, ...]]]:
        """Return the steps on each field and view, in order: for each step its entries.

        Args:
            alike: Groups of views with equal steps. The first view of a group stands for all of it:
                its steps have an entry of each view. All other steps have one entry.
        """
        if alike not in self._groups:
            groups = {group[0]: group for group in alike}
            later = {view for group in alike for view in group[1:]}
            self._groups[alike] = {
                name: list(zip(*map(self.entries_on, groups.get(name, (name,))), strict=True))
                for name in (*self.fields, *self.views)
                if name not in later
            }
        return self._groups[alike]

    @cached_property
    def _groups(self) -> dict[Any, Mapping[str, Sequence[tuple[Entry, ...]]]]:
        """The results of `group_entries`."""
        return {}

    @cached_property
    def _entries_by_field(self) -> dict[str, list[Entry]]:
        by_field: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_field.setdefault(entry.field, []).append(entry)
        return by_field

    def first_steps(self, count: int) -> "Pipeline":
        """Return a pipeline of only the first steps.

        Args:
            count: The number of entries to keep. If the last of them works on a view, the pipeline
                makes only that view; else it makes no view.

        Returns:
            The pipeline. If it has steps, the decode steps among the dropped entries are kept, and
            come first: engines cannot deliver one field as encoded bytes and another as images.
        """
        entries = self.entries[:count]
        view = entries[-1].field if entries and entries[-1].field in self.views else None
        kept = tuple(e for e in entries if e.field not in self.views or e.field == view)
        if kept:
            later = (e for e in self.entries[count:] if e.input_spec.encoded)
            kept = (*later, *kept)
        return replace(
            self,
            entries=kept,
            views={view: self.views[view]} if view else {},
            later={epoch: p.first_steps(count) for epoch, p in self.later.items()},
        )

    def without_entries(self, numbers: Collection[int]) -> "Pipeline":
        """Return a pipeline without the entries at these positions, in all epochs."""
        return replace(
            self,
            entries=tuple(e for n, e in enumerate(self.entries) if n not in numbers),
            later={epoch: p.without_entries(numbers) for epoch, p in self.later.items()},
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and their parameters, equal for two files that mean the same."""
        content: list[list[Any]] = [
            [e.key, e.identity(), *([e.field] if e.field != self.main else [])]
            for e in self.entries
        ]
        content += [["view", view, source] for view, source in self.views.items()]
        return self.hash_phases(content)
