"""BatchStage: the checked steps of `batch:` in a config, built from the list in a YAML document."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.batch_step import BATCH_STEPS, BatchContainer, BatchStep, NestedBatchStep
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem, counted
from gpupipe.pipeline.entry import BaseEntry, make_key
from gpupipe.pipeline.parsing import ParsedStep, StepKind, parse_item
from gpupipe.pipeline.schedules import Phased, build_with_schedules
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.runtime.failures import step_errors
from gpupipe.sampling import draws
from gpupipe.schema.document import Document, Loc, Node


def find_shift(ids: NDArray[np.int64]) -> int:
    """Return the shift by which a batch is mixed: sample i is mixed with sample i - shift.

    The shift is the length of the longest run of equal ids, so that views of one sample that follow
    each other do not mix. If the batch is shorter than two runs of this length, the shift is 0,
    which means: mix nothing.

    Args:
        ids: The ids of the batch's samples, in their order, int64 (B,).
    """
    longest = 1
    if (ids[1:] == ids[:-1]).any():
        ends = np.flatnonzero(np.diff(ids, append=-1, prepend=-1))
        longest = int(np.diff(ends).max())
    return longest if len(ids) >= 2 * longest else 0


def count_pairs_of_one_sample(ids: NDArray[np.int64]) -> int:
    """Return how many samples of a batch are mixed with a view of themselves.

    Args:
        ids: The ids of the batch's samples, in their order, int64 (B,).
    """
    shift = find_shift(ids)
    return int((ids == np.roll(ids, shift)).sum()) if shift else 0


@dataclass(frozen=True)
class BatchEntry(BaseEntry[BatchStep]):
    """One step at its position in the batch stage; see BaseEntry.

    Attributes:
        layouts: Maps the name of each field that the step works on to its layout, such as "CHW".
    """

    layouts: dict[str, str]

    @cached_property
    def batch_layouts(self) -> dict[str, str]:
        """The layout of a batch of each field, such as "*CHW": no other axis has the letter "*"."""
        return {name: f"*{layout}" for name, layout in self.layouts.items()}

    def draw(self, seed: int, epoch: int, batches: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Draw the step's parameters for several batches; return those of each.

        The draws are hashes of (seed, epoch, ids of the batch, step), so they depend on all samples
        of the batch.

        Args:
            seed: The loader's seed.
            epoch: The epoch, from 0.
            batches: The hash of the ids of each batch, int64 (N,): see `draws.hash_ids`.

        Raises:
            StepError: If the step's `sample` raises, or returns arrays of a wrong length.
        """
        if self._draws_nothing:
            return [{} for _ in batches]
        streams = [(draws.stream(f"batch: {self.key}"), self.step.num_uniforms)]
        (uniform,) = draws.uniform_for_streams(seed, epoch, batches, streams)
        sampled = self.sample(uniform, counted(len(batches), "batch", "batches"))
        return [{name: values[n] for name, values in sampled.items()} for n in range(len(batches))]


@dataclass(frozen=True)
class BatchStage(Phased):
    """The checked steps of the batch stage, in order. Without steps it leaves batches alone.

    Attributes:
        entries: The steps. Parameters with a schedule have their values of epoch 0.
        main: The fields that a step works on unless it has `on:`.
        later: Maps each epoch in which schedules change a parameter to the stage from that epoch
            on, in ascending order. Empty if there are no schedules.
    """

    entries: tuple[BatchEntry, ...] = ()
    main: tuple[str, ...] = ()
    later: "Mapping[int, BatchStage]" = field(default_factory=dict)

    @property
    def num_classes(self) -> int | None:
        """The `num_classes` that is set on the steps; None to use the classes of the data."""
        return next((n for e in self.entries for n in e.step.list_num_classes()), None)

    @property
    def uses_labels(self) -> bool:
        """Whether a step takes soft labels; if not, labels stay as they are."""
        return any(entry.step.uses_labels for entry in self.entries)

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may each run the steps on a batch at the same time."""
        return all(entry.step.is_thread_safe for entry in self.entries)

    def draw(
        self, seed: int, epoch: int, batches: Sequence[NDArray[np.int64]]
    ) -> list[list[dict[str, Any]]]:
        """Draw the parameters of all steps for several batches; return those of each batch.

        The parameters also have "shift", which depends on the ids alone: see `find_shift`.

        Args:
            seed: The loader's seed.
            epoch: The epoch, from 0.
            batches: For each batch the rows of its samples in the index, int64 (B,), in order.

        Raises:
            StepError: As BatchEntry.draw.
        """
        hashed = np.concatenate([draws.hash_ids(ids) for ids in batches])
        drawn = [entry.draw(seed, epoch, hashed) for entry in self.entries]
        shifts = map(find_shift, batches)
        return [
            [{"shift": shift, **of_entry[n]} for of_entry in drawn]
            for n, shift in enumerate(shifts)
        ]

    def as_steps(self) -> list[dict[str, Any]]:
        """Return the steps as JSON values, from which `build_batch_stage` rebuilds the stage."""
        return [
            {e.name: e.step.model_dump(mode="json", exclude_none=True) | {"on": list(e.layouts)}}
            for e in self.entries
        ]

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and their parameters, equal for two files that mean the same.

        Without steps it is "".
        """
        if not self.entries:
            return ""
        content = [
            [e.key, e.step.model_dump(mode="json", exclude_none=True)]
            + ([list(e.layouts)] if tuple(e.layouts) != self.main else [])
            for e in self.entries
        ]
        return self.hash_phases(content)


_ON_BATCHES = StepKind(
    BATCH_STEPS, BatchContainer, NestedBatchStep, "write it beside 'transforms', for all steps"
)


def build_batch_stage(
    document: Document, loc: Loc, fields: Mapping[str, Spec] | None, main: Sequence[str] = ()
) -> BatchStage:
    """Build the batch stage from the list of steps at `loc` of a document.

    If steps have schedules, build one stage for each span of epochs with the same values.

    Args:
        document: The YAML document.
        loc: The path of keys to the list.
        fields: The fields of a batch, by name. None if they are unknown, because the rest of the
            config is wrong: then check only the steps' parameters.
        main: The fields that a step works on unless it has `on:`.

    Raises:
        ConfigError: With all mistakes in the list.
    """
    return build_with_schedules(
        document,
        loc,
        [loc],
        lambda plain: _build_phase(plain, loc, fields, tuple(main)),
        _describe_change,
    )


def _describe_change(first: BatchStage, later: BatchStage, when: str) -> str:
    if first.num_classes == later.num_classes:
        return ""
    change = f"num_classes is {first.num_classes} in epoch 0, but {later.num_classes} {when}"
    return f"{change}: write one number"


def check_later_fields(stage: BatchStage, fields: Mapping[str, Spec], epoch: int) -> list[Problem]:
    """Check each step with fields whose sizes schedules have changed; return the problems.

    Args:
        stage: The stage, which was built for the fields of epoch 0.
        fields: The fields from epoch `epoch` on; they differ from those of epoch 0 only in sizes.
        epoch: The first epoch with these fields.
    """
    problems = [
        _check(e.name, e.step, e.where, {name: fields[name] for name in e.layouts})
        for e in stage.entries
    ]
    return [Problem(p.where, f"{p.what} (from epoch {epoch} on)") for p in problems if p]


def _check(name: str, step: BatchStep, where: str, fields: Mapping[str, Spec]) -> Problem | None:
    """Return a problem if a step cannot process its fields, else None."""
    try:
        with step_errors(name, type(step), where, "check()", StepIncompatibleError):
            step.check(fields)
    except StepIncompatibleError as e:
        return Problem(e.where or where, f"{name} cannot stand here: {e}")
    return None


def _build_phase(
    document: Document, loc: Loc, fields: Mapping[str, Spec] | None, main: tuple[str, ...]
) -> BatchStage:
    """Build the stage from a document without schedules; see `build_batch_stage`."""
    problems: list[Problem] = []
    items = Node(document, loc, problems).items()
    parsed = [parse_item(_ON_BATCHES, item, fields, main) for item in items]
    entries = [] if fields is None else _make_entries(parsed, fields, problems)
    _check_num_classes(parsed, problems)
    if problems:
        raise ConfigError(problems)
    return BatchStage(tuple(entries), main if entries else ())


def _make_entries(
    steps: Sequence[ParsedStep[BatchStep]], fields: Mapping[str, Spec], problems: list[Problem]
) -> list[BatchEntry]:
    """Return the entries of the steps; leave out and report those that refuse their fields."""
    entries: list[BatchEntry] = []
    seen = Counter[str]()
    for p in steps:
        if p.step is None or not p.on:
            continue
        if problem := _check(p.name, p.step, p.where, {name: fields[name] for name in p.on}):
            problems.append(problem)
            continue
        seen[p.name] += 1
        layouts = {name: fields[name].layout for name in p.on}
        key = make_key(p.name, seen[p.name])
        entries.append(BatchEntry(p.name, key, p.step, p.where, layouts))
    return entries


def _check_num_classes(steps: Sequence[ParsedStep[BatchStep]], problems: list[Problem]) -> None:
    """Report each `num_classes` that differs from the first one."""
    counts = [(p, number) for p in steps if p.step for number in p.step.list_num_classes()]
    problems += [
        Problem(
            p.where,
            f"{p.name}.num_classes is {number}, but {counts[0][0].name} has {counts[0][1]}: write "
            "the same, or leave both out to take the classes of the data",
        )
        for p, number in counts
        if number != counts[0][1]
    ]
