"""Lowers the steps of a job: onto primitives that kernels run, or onto `Step.torch`.

A step runs in torch in these cases:

- it calls a primitive that no kernel runs;
- its class belongs to another package, and implements `Step.torch`;
- the size of its input is unknown until the step before it has run;
- its field is an array that is no image: see `spec_checks.is_picture`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.base import DrawnStep, Job, Operator
from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu import (
    color_stages,
    compiled_degradations,
    compiled_geometry,
    compiled_kernels,
    kernels,
    process_calls,
)
from gpupipe.engines.cpu.joined_buffers import JoinedBuffers
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.program import FieldProgram, Program, Rules, ViewProgram
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.engines.cpu.unequal_buffer import UnequalBuffer
from gpupipe.errors import EngineError
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec
from gpupipe.runtime import tracing
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.failures import is_foreign
from gpupipe.runtime.installation import has_opencv
from gpupipe.sampling.sampler import Plan
from gpupipe.steps.decode import Decode

Sizes = Mapping[str, NDArray[np.float64]]
"""[height, width] of the decoded images and arrays of a batch, (B, 2), by field."""

Outputs = Mapping[str, OutputBuffer | UnequalBuffer]
"""The buffer of each delivered field and view of a batch."""

ViewGroups = Sequence[tuple[str, ...]]
"""The views of a field. Those of a tuple have equal steps, and one program."""

_Result = TypeVar("_Result")
_MAX_TRIES = 1000
_EXAMPLE_SIZE = np.full((1, 2), 4096.0)


@cache
def find_rules() -> Rules:
    """Return the rules that choose kernels, in the order in which they are tried.

    The rules of the compiled extension come first, then those of OpenCV if it is installed, then
    those of the reference kernels.
    """
    rules = [
        *color_stages.create_rules(),
        *compiled_geometry.create_rules(),
        *compiled_kernels.create_rules(),
        *compiled_degradations.create_rules(),
        *process_calls.create_rules(),
    ]
    if has_opencv():
        from gpupipe.engines.cpu import opencv_kernels

        rules += opencv_kernels.create_rules()
    return Rules([*rules, *kernels.RULES])


class StepLowering:
    """Lowers each step of a job onto primitives or onto torch.

    Args:
        job: The samples, steps and settings of the loader. The pipeline has no schedules.
        cached_steps: The number of first steps whose output the decoded cache keeps, by field.

    Attributes:
        job: The job.

    Raises:
        EngineError: A step runs neither on primitives of this engine nor in torch.
    """

    def __init__(self, job: Job, cached_steps: Mapping[str, int] | None = None) -> None:
        self.job = job
        self._cached_steps = cached_steps or {}
        self._rules = find_rules()
        self._formats = {n: DeliveryFormat.of(job, n) for n in job.pipeline.outputs}
        names = *job.pipeline.fields, *job.pipeline.views
        self._last_specs = {n: job.pipeline.output_spec_of(n) for n in names}
        self._in_torch: set[tuple[str, str]] = set()
        """The steps that run in torch, by key and field."""
        for name, spec in job.pipeline.fields.items():
            is_size_known = self._choose(name, _can_be_image(spec))
            for view in job.pipeline.views_of(name):
                self._choose(view, is_size_known)
        self._alike = {name: self._find_alike(name) for name in job.pipeline.fields}

    def _find_alike(self, name: str) -> ViewGroups:
        """Group the views of a field: successive ones with equal steps, as `count` makes them.

        A view is alone if a step of another package might look at more than a row of its
        parameters, or if images may differ in shape.
        """
        groups: list[tuple[str, ...]] = []
        can_join, last = self.job.loader.shapes == "equal", None
        for view in self.job.pipeline.views_of(name):
            entries = self.job.pipeline.entries_on(view)
            is_own = all(not is_foreign(type(entry.step)) for entry in entries)
            is_own = is_own and not any((entry.key, view) in self._in_torch for entry in entries)
            steps = [(entry.where, entry.step) for entry in entries] if is_own else None
            if can_join and steps and steps == last:
                groups[-1] += (view,)
            else:
                groups.append((view,))
            last = steps
        return groups

    def decode_step(self, name: str) -> Decode | None:
        """Return the step `decode` at the start of a field; None if the field has none."""
        entries = self.job.pipeline.entries_on(name)
        step = entries[0].step if entries else None
        return step if isinstance(step, Decode) else None

    def create_outputs(
        self, count: int, memory: BatchMemory | None, pad_to: int | None = None
    ) -> Outputs:
        """Return a buffer for each delivered field and view of a batch of `count` samples.

        Args:
            count: The number of samples.
            memory: The pool that allocates batches; None if nothing is delivered.
            pad_to: Images that may differ in size are padded to multiples of this number; None
                leaves them as they are.
        """
        if self.job.loader.shapes == "equal":
            return {n: OutputBuffer(count, format, memory) for n, format in self._formats.items()}
        is_image = self.job.pipeline.is_image_file
        return {
            name: UnequalBuffer(count, format, memory, pad_to if is_image(name) else None)
            for name, format in self._formats.items()
        }

    def lower(self, plan: Plan, sizes: Sizes, outputs: Outputs) -> dict[str, FieldProgram]:
        """Return the programs of each field for a batch.

        Views with equal steps have one program, unless a trace is recorded: there each view has its
        own steps.

        Args:
            plan: The plan of the batch.
            sizes: [height, width] of the decoded images and arrays, (B, 2), by field.
            outputs: The buffer of each delivered field and view.

        Raises:
            SampleIncompatibleError: A step cannot process one of the samples.
            StepError: The code of a step failed.
        """
        is_alone = plan.annotations is not None or tracing.is_recording()
        return self._lower(plan, sizes, outputs, {} if is_alone else self._alike)

    def _lower(
        self,
        plan: Plan,
        sizes: Sizes,
        outputs: Outputs,
        alike: Mapping[str, ViewGroups],
    ) -> dict[str, FieldProgram]:
        programs, count = {}, len(plan.ids)
        pipeline = self.job.pipeline
        steps = self.job.steps_for(plan, tuple(itertools.chain(*alike.values())))
        for name, spec in pipeline.fields.items():
            unknown = np.zeros((count, 2))
            tracer = Tracer(sizes.get(name, unknown), self._rules, spec)
            self._trace(name, tracer, steps[name])
            views = []
            for group in alike.get(name, [(view,) for view in pipeline.views_of(name)]):
                fork = tracer.fork(copies=len(group))
                self._trace(group[0], fork, steps[group[0]])
                buffers = [outputs[view] for view in group]
                output = buffers[0] if len(group) == 1 else JoinedBuffers(buffers, count)
                views.append(ViewProgram(fork.program(output), len(group), count))
            programs[name] = FieldProgram(tracer.program(None if views else outputs[name]), views)
        return programs

    def operators(self) -> list[Operator]:
        """Return the name, device and step keys of each kernel that runs, field by field."""
        return [operator for p in self._example_programs() for operator in p.list_operators()]

    def needs_torchvision(self) -> bool:
        """Return whether the steps may call torchvision."""
        try:
            programs = self._example_programs()
        except EngineError:  # the steps refuse every example, but perhaps not the data
            return True
        return any(program.needs_torchvision() for program in programs)

    def _example_programs(self) -> list[Program]:
        """Return the program of each field for one made-up sample, each with those of its views."""
        outputs = self.create_outputs(1, None)
        fields = self.job.pipeline.fields
        sizes = {name: _example_size(spec) for name, spec in fields.items() if _can_be_image(spec)}
        by_field = self._try_samples(lambda plan: self._lower(plan, sizes, outputs, {}))
        return [program for of_field in by_field.values() for program in of_field.programs]

    def _trace(self, name: str, tracer: Tracer, steps: Sequence[DrawnStep]) -> None:
        """Record the operations of a field's or view's steps in `tracer`."""
        for number, (entry, parameters) in enumerate(steps, 1):
            tracer.begin_step(entry.key, entry.input_spec)
            if (entry.key, name) in self._in_torch:
                tracer.run_torch(entry, parameters)
            else:
                entry.lower(tracer, parameters)
                if is_foreign(type(entry.step)):
                    tracer.check(entry)
            if number == self._cached_steps.get(name):
                tracer.end_prefix()
        tracer.begin_step("", self._last_specs[name])

    def _choose(self, name: str, is_size_known: bool) -> bool:
        """Decide for each step of a field or view whether it runs in torch.

        Returns whether the size of the samples is known after the last step.
        """
        source = self.job.pipeline.fields[self.job.pipeline.source_of(name)]
        for entry in self.job.pipeline.entries_on(name):
            reason = "" if is_size_known else "the size of its samples is not known"
            if not reason and not source.encoded and not is_picture(entry.input_spec):
                reason = f"no kernel takes arrays {entry.input_spec} ({entry.input_spec.layout})"
            if not reason and not (is_foreign(type(entry.step)) and entry.step.has_torch):
                reason = self._why_not_primitives(entry)
                if not reason:
                    continue
            if not entry.step.has_torch:
                raise EngineError(
                    f"{entry.where}: {reason}, and {type(entry.step).__name__} has no torch "
                    "lowering; it cannot run on the CPU engine: use engine: dali"
                )
            self._in_torch.add((entry.key, name))
            is_size_known = _can_be_image(source) and entry.output_spec.size is not None
        return is_size_known

    def _why_not_primitives(self, entry: Entry) -> str:
        """Return why a step does not run on the primitives of this engine; "" if it does."""
        size = _example_size(entry.input_spec)

        def try_step(plan: Plan) -> Program:
            tracer = Tracer(size, self._rules, entry.input_spec, entry.key)
            entry.lower(tracer, entry.parameters(0, plan.epoch, plan.ids))
            program = tracer.program()
            program.check()
            return program

        try:
            self._try_samples(try_step)
        except NoLoweringError as e:
            return str(e)
        return ""

    def _try_samples(self, lower: Callable[[Plan], _Result]) -> _Result:
        """Try plans of one sample; return `lower(plan)` of the first that every step accepts."""
        for id in range(_MAX_TRIES):
            try:
                return lower(Plan(0, np.full(1, id, np.int64), 1, True))
            except SampleIncompatibleError as e:
                refusal = e
        raise EngineError(
            f"a step refuses each of {_MAX_TRIES:,} samples of which all else is unknown: {refusal}"
        )


def _can_be_image(spec: Spec) -> bool:
    """Return whether the samples of a field are image files, or arrays with height and width."""
    return spec.encoded or spec.space == "HW"


def _example_size(spec: Spec) -> NDArray[np.float64]:
    """Return [height, width] of one sample, (1, 2): those of the spec if they are fixed."""
    is_fixed = not spec.encoded and spec.size is not None and len(spec.size) == 2
    return np.array([spec.size], np.float64) if is_fixed else _EXAMPLE_SIZE
