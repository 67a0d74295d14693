"""Entry: one step at its position in a list. It runs the step's code and checks the results.

`chain_steps` makes the entries of a list: it checks each step against the output of the previous
step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import Sizes, Spec
from gpupipe.errors import Problem, StepError, nearest, shown
from gpupipe.pipeline.parsing import ParsedStep
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import (
    BaseStep,
    NoLoweringError,
    Params,
    SampleIncompatibleError,
    Step,
    StepIncompatibleError,
)
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.failures import step_errors, step_wrong
from gpupipe.sampling import draws

_Step = TypeVar("_Step", bound=BaseStep)


def make_key(name: str, count: int) -> str:
    """Return the key of the `count`-th step with this name: "resize", "resize_2" and so on."""
    return name if count == 1 else f"{name}_{count}"


@dataclass(frozen=True)
class BaseEntry(Generic[_Step]):
    """One step at its position in a pipeline or in the batch stage.

    Attributes:
        name: The step's name in YAML.
        key: The name, with a number if the step occurs again: "random_affine", "random_affine_2".
            The key seeds the draws, so all fields that a step works on get the same draws.
        step: The step, with the short forms of its parameters expanded.
        where: The step's location in the YAML, for messages.
    """

    name: str
    key: str
    step: _Step
    where: str

    def sample(self, u: NDArray[np.float64], drawn_for: str) -> dict[str, NDArray[Any]]:
        """Call the step's `sample`, and check the length of each array that it returns.

        Args:
            u: Uniform draws in [0, 1), (N, num_uniforms).
            drawn_for: What the N rows are for, in words for messages: "5 samples".

        Raises:
            StepError: If the step's `sample` raises, or returns an array of another length than N.
        """
        if self._draws_nothing:
            return {}
        try:
            sampled = self.step.sample(u) | self.step.list_undecided(len(u))
        except Exception:  # a context manager around each call takes longer than some steps
            with self.blame("sample()"):
                raise
        for name, values in sampled.items():
            shape = values.shape if isinstance(values, np.ndarray) else np.shape(values)
            if shape[:1] != (len(u),):
                raise self.wrong(f"its sample() made '{name}' of shape {shape} for {drawn_for}")
        return sampled

    @cached_property
    def _draws_nothing(self) -> bool:
        """Whether `sample` returns no array."""
        return type(self.step).sample is BaseStep.sample and not self.step.list_undecided(1)

    @cached_property
    def stream(self) -> tuple[int, int]:
        """The stream of the step's draws, and how many each sample gets from it."""
        return draws.stream(self.key), self.step.num_uniforms

    def blame(self, call: str, *passed: type[Exception]) -> AbstractContextManager[None]:
        """Return a context that turns exceptions of the step's code into StepError.

        Args:
            call: The method that runs, for the message: "sample()".
            *passed: Types of exceptions that pass through unchanged.
        """
        return step_errors(self.key, type(self.step), self.where, call, *passed)

    def wrong(self, mistake: str) -> StepError:
        """Return the StepError that reports `mistake` in the step's code."""
        return step_wrong(self.key, type(self.step), self.where, mistake)


@dataclass(frozen=True)
class Entry(BaseEntry[Step]):
    """One step at its position in the pipeline, on one field; see BaseEntry.

    Attributes:
        input_spec: Shape, dtype and layout of the step's input.
        output_spec: Shape, dtype and layout of the step's output.
        field: The field that the step works on.
    """

    input_spec: Spec
    output_spec: Spec
    field: str

    def parameters(
        self,
        seed: int,
        epoch: int,
        ids: NDArray[np.int64],
        repeats: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the step's parameters for a batch, by name: see `draw_parameters`."""
        (parameters,) = draw_parameters([[self]], seed, epoch, ids, repeats)
        return parameters

    def lower(self, image: Primitives, parameters: Params) -> None:
        """Apply the step to a batch by calling primitives of a back end.

        Raises:
            StepError: If the step's code fails.
            NoLoweringError: If the step does not run on that back end.
            SampleIncompatibleError: If the step cannot process a sample.
        """
        try:
            self.step.decide_and_lower(image, parameters)
        except Exception:  # as in `sample`
            with self.blame("lower()"):
                raise

    def torch(self, image: Any, parameters: Params) -> Any:
        """Apply the step to one image in torch, and check the result against `output_spec`.

        Raises:
            StepError: If the step's code fails, or the result differs from `output_spec`.
            NoLoweringError: If the step does not run in torch.
            SampleIncompatibleError: If the step cannot process the image.
            OSError, RuntimeError, ValueError: From the decoder, if the bytes are no image.
        """
        try:
            output = self.step.torch(image, parameters)
        except Exception:  # a context manager around each call would take more time than some steps
            decode_errors = (OSError, RuntimeError, ValueError) if self.input_spec.encoded else ()
            with self.blame("torch()", *decode_errors):
                raise
        if differs := self.output_spec.describe_mismatch(output, self._sizes):
            raise self.wrong(f"its torch() made {differs}")
        return output

    @cached_property
    def _sizes(self) -> Sizes:
        return self.output_spec.canonical_sizes

    def dump(self) -> dict[str, Any]:
        """Return the step's parameters as JSON values; raise StepError if that fails."""
        with self.blame("model_dump()"):
            return self.step.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return the parameters that enter the pipeline's fingerprint, as JSON values.

        Leave out the parameters in `Step.added_later` that have their defaults, and all in
        `outside_fingerprint`. Raise StepError if the step cannot be dumped.
        """
        fields = type(self.step).model_fields
        return {
            name: value
            for name, value in self.dump().items()
            if name not in self.step.outside_fingerprint
            and (name not in self.step.added_later or value != fields[name].default)
        }

    def blame(self, call: str, *passed: type[Exception]) -> AbstractContextManager[None]:
        return super().blame(call, NoLoweringError, SampleIncompatibleError, *passed)


def draw_parameters(
    steps: Sequence[Sequence[Entry]],
    seed: int,
    epoch: int,
    ids: NDArray[np.int64],
    repeats: NDArray[np.int64] | None = None,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Draw the parameters of several steps for a batch, and yield those of each.

    The uniform draws of all steps are computed at once.

    Args:
        steps: For each step its entries, n of them if n views have the same step. Its arrays are
            (n * B, ...): the rows of each entry after those of the entry before it.
        seed: The loader's seed.
        epoch: The epoch, from 0.
        ids: The samples' rows in the index, int64 (B,).
        repeats: How often each sample occurred earlier in the epoch, int64 (B,); None if no sample
            did.

    Yields:
        Arrays by name, each with B as its first axis.

    Raises:
        StepError: A step's `sample` raises, or returns an array of another length than B.
    """
    streams = [entry.stream for entries in steps for entry in entries]
    joined = [len(entries) for entries in steps]
    uniforms = draws.uniform_for_streams(seed, epoch, ids, streams, repeats, joined)
    for entries, uniform in zip(steps, uniforms, strict=True):
        yield entries[0].sample(uniform, f"{len(uniform)} samples")


def chain_steps(
    parsed: Sequence[ParsedStep[Step]], fields: Mapping[str, Spec], problems: list[Problem]
) -> list[Entry]:
    """Make an Entry for each step and each of its fields, and check that the steps fit together.

    Each step is checked against the output of the step before it on the same field. Mistakes are
    appended to `problems`. If a step refuses its input, the next step is checked as if the refusing
    step were absent.
    """
    entries: list[Entry] = []
    seen = Counter[str]()
    specs = {
        name: _spec_before_steps(name, spec, parsed, problems) for name, spec in fields.items()
    }
    for p in parsed:
        outcomes = {
            name: _make_entry(p, name, input_spec, parsed, problems)
            for name in p.on
            if (input_spec := specs[name]) is not None
        }
        seen[p.name] += any(isinstance(o, Entry) for o in outcomes.values())
        key = make_key(p.name, seen[p.name])
        for name, o in outcomes.items():
            if isinstance(o, Entry):
                entries.append(replace(o, key=key))
                specs[name] = o.output_spec
            else:
                specs[name] = o and replace(o, kind=fields[name].kind)
    return entries


def _make_entry(
    p: ParsedStep[Step],
    name: str,
    input_spec: Spec,
    parsed: Sequence[ParsedStep[Step]],
    problems: list[Problem],
) -> Entry | Spec | None:
    """Return the entry of a step on the field `name`.

    If the step is invalid or refuses its input, return instead the spec against which to check the
    next step; None if that is unknown.
    """
    if p.step is None:
        return _guess_output(p.name, input_spec)
    step = p.step.adapt_to_mask() if input_spec.kind == "mask" else p.step
    try:
        step, output = _infer(p, step, input_spec)
        return Entry(p.name, p.name, step, p.where, input_spec, output, name)
    except StepIncompatibleError as e:
        why: object = e
        decoders = (q.name for q in parsed if name in q.on and _decodes(q))
        if input_spec.encoded and (later := next(decoders, None)):
            why = f"what reaches it are still encoded bytes: move it after '{later}'"
        of = f" on {name}" if len(p.on) > 1 else ""
        problems.append(Problem(e.where or p.where, f"{p.name} cannot stand here{of}: {why}"))
        return input_spec


def _spec_before_steps(
    name: str, spec: Spec, parsed: Sequence[ParsedStep[Step]], problems: list[Problem]
) -> Spec | None:
    """Return the spec of a field before its first step.

    If no step decodes the field, append that mistake to `problems`, and return the spec of a
    decoded image, so that the steps do not report the same mistake again.
    """
    if not spec.encoded or any(name in p.on and (p.step is None or _decodes(p)) for p in parsed):
        return spec
    write = f"'- decode: {{on: {name}}}' before the steps on it"
    if all(name in p.on for p in parsed):
        write = "'- decode' as the first step"
    problems.append(Problem(parsed[0].where, f"no step decodes the {name}: write {write}"))
    return replace(Spec.of_image(None), kind=spec.kind)


def _infer(p: ParsedStep[Step], step: Step, input_spec: Spec) -> tuple[Step, Spec]:
    """Return the step with its short forms expanded for its input, and the spec of its output."""
    with step_errors(p.name, type(step), p.where, "infer_spec()", StepIncompatibleError):
        step = step.resolve(input_spec)
        output: object = step.infer_spec(input_spec)
        if not isinstance(output, Spec):
            raise TypeError(f"it must return a Spec, and not {shown(output)}")
    return step, replace(output, kind=input_spec.kind)


def _decodes(p: ParsedStep[Step]) -> bool:
    """Return whether a step turns encoded bytes into pixels."""
    try:
        return p.step is not None and not _infer(p, p.step, Spec())[1].encoded
    except StepIncompatibleError:
        return False


def _guess_output(name: str, spec: Spec) -> Spec | None:
    """Guess the output of an invalid step, so that later steps are not blamed for it.

    For an unknown name, use the step with the most similar name. Return None if there is no guess.
    """
    names = STEPS.names()
    meant = name if name in names else nearest(name, names)
    if meant not in STEPS.builtin_names:
        return None
    output = STEPS.find(meant).guess_spec(spec)
    return spec if spec.encoded and output is not None and not output.layout else output
