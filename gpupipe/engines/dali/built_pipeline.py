"""A pipeline built for DALI: it runs the plans of one phase, in which no schedule changes a step.

The operators of a DALI graph cannot be changed after it is built. So when a schedule changes a
step, the engine closes one BuiltPipeline and creates the next. Objects that do not depend on the
steps, such as the quarantine, outlive it.

DALI loses a whole batch if one sample fails. So the samples of a failed batch run again one by one,
beginning with those whose files look broken. Those that fail are quarantined. Then the good samples
run as one batch. No sample is blamed if the machine failed: if DALI's message says so, or if a
known good image fails too.
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import chain

from gpupipe.annotations.batch_annotations import VALUES
from gpupipe.engines.bad_samples import Quarantine, explain_sample_failure, find_suspects
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import SHAPES, check_shapes
from gpupipe.engines.dali.cached_reader import CachedReader
from gpupipe.engines.dali.checks import check_batch
from gpupipe.engines.dali.graph import GraphRunner, Outcome, Tensors
from gpupipe.engines.dali.lowering import Lowering, to_field
from gpupipe.engines.dali.operators.dtypes import find_refused_dtype
from gpupipe.engines.dali.operators.trial import KnownGood
from gpupipe.engines.dali.reader import BuildOptions, Reader, make_reader
from gpupipe.errors import EngineError, StepError
from gpupipe.runtime.failures import machine_failure
from gpupipe.runtime.function_failures import take_failure
from gpupipe.runtime.tracing import span
from gpupipe.sampling.sampler import Plan


class BuiltPipeline:
    """The DALI graph of a job whose pipeline has no schedules, and the objects that run it.

    Args:
        job: The job.
        options: How to build the graph.
        quarantine: The samples that are known to be bad.

    Attributes:
        lowering: The lowering of the job's steps.
        is_closed: Whether `close` was called.
    """

    def __init__(self, job: Job, options: BuildOptions, quarantine: Quarantine) -> None:
        self._job, self._quarantine = job, quarantine
        self._suffix = "" if job.loader.shapes == "equal" else VALUES
        device_id, fields, cache = options.device_id, options.fields, options.cache
        self.lowering = lowering = Lowering(
            job,
            "cpu" if device_id is None else "gpu",
            options.may_cut,
            done=None if cache is None else cache.count_steps(),
        )
        self._reader: Reader = (
            make_reader(lowering, fields, options.checks_jpegs)
            if cache is None
            else CachedReader(job, cache, options)
        )
        warm_up = min(job.loader.batch_size, len(job.index)) if options.warm_up else 0
        self._runner = GraphRunner(lowering, device_id, self._reader, fields, warm_up)
        self._known_good = KnownGood(device_id)

    @property
    def is_closed(self) -> bool:
        return self._runner.is_closed

    def run(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Tensors]]:
        """Yield each plan with its tensors, until the plans end or the quarantine refuses one.

        A yielded plan lists only the samples in the tensors, without the bad ones.
        """
        more = True
        while more and self._quarantine.refusal is None:
            more = False
            for plan, outcome in self._runner.run(self._quarantine.iter_good_plans(plans)):
                if isinstance(outcome, RuntimeError):
                    yield from self._run_repaired([(plan, outcome), *self._runner.flush()])
                    more = True
                    break
                yield plan, outcome

    def _run_repaired(self, outcomes: list[tuple[Plan, Outcome]]) -> Iterator[tuple[Plan, Tensors]]:
        """Yield plans and tensors in order. Run failed batches again, without their bad samples.

        `outcomes` holds each plan with its tensors, or with the error if the batch failed.
        """
        for plan, outcome in outcomes:
            if isinstance(outcome, RuntimeError):
                yield from self._repair(plan, outcome)
            else:
                yield plan, outcome

    def _repair(self, plan: Plan, error: RuntimeError) -> Iterator[tuple[Plan, Tensors]]:
        """Find the samples that fail when they run alone, and run the others again as one batch.

        Samples whose files look broken run alone first. If the batch then passes without those that
        fail, the search ends.

        Args:
            plan: A plan that failed.
            error: The error with which it failed.

        Yields:
            The plan without its bad samples, and their tensors; nothing if all samples are bad.

        Raises:
            EngineError: The machine failed.
            SampleError: A sample failed, and `loader.on_error` is "raise".
            ShapeError: No sample failed, but their sizes differ.
        """
        self._raise_unless_sample_failed(error)
        suspicious = plan.select(find_suspects(self._job.index, plan.ids))
        if len(suspicious.ids) and self._try_alone(suspicious):
            rest = self._run_good(plan)
            if not isinstance(rest, RuntimeError):
                yield from rest
                return
        self._try_alone(self._quarantine.drop_bad(plan))
        rest = self._run_good(plan)
        if isinstance(rest, RuntimeError):
            self._raise_unless_sample_failed(rest)
            raise EngineError(
                "DALI failed twice on a batch whose samples pass one by one, the first of "
                f"them {self._job.index.location(int(plan.ids[0]))}: {rest}"
            ) from error
        yield from rest

    def _try_alone(self, plan: Plan) -> bool:
        """Run the samples of a plan one by one, and quarantine those that fail.

        Return whether any failed.
        """
        shapes: dict[str, list[tuple[int, ...]]] = {}
        has_failures = False
        alone_plans = (plan.select([i]) for i in range(len(plan.ids)))
        for alone, outcome in self._runner.run_all(alone_plans):
            if not isinstance(outcome, RuntimeError):
                if self._suffix:
                    continue  # shapes may differ
                for name, data in outcome.items():
                    shape = tuple(to_field(self._job, name, data).shape[1:])
                    shapes.setdefault(name, []).append(shape)
                continue
            has_failures = True
            id = int(alone.ids[0])
            self._raise_unless_sample_failed(outcome, id)
            self._known_good.check(str(outcome))
            self._quarantine.add(id, explain_sample_failure(self._job.index, id, str(outcome)))
        if not has_failures and not self._suffix:
            check_shapes(shapes, plan, self._job)
        return has_failures

    def _run_good(self, plan: Plan) -> list[tuple[Plan, Tensors]] | RuntimeError:
        """Run the good samples of a plan as one batch. If the batch fails, return its error.

        Return [] if no sample is good.
        """
        good = self._quarantine.drop_bad(plan)
        if not len(good.ids):
            self._quarantine.refuse_to_lose_a_step()
            return []
        outcomes = list(self._runner.run([good]))
        failed = next((o for _, o in outcomes if isinstance(o, RuntimeError)), None)
        return failed or [(p, o) for p, o in outcomes if not isinstance(o, RuntimeError)]

    def _raise_unless_sample_failed(self, error: RuntimeError, id: int | None = None) -> None:
        """Raise EngineError if the machine failed, or an operator refused the dtype of all samples.

        Raise StepError if a function of the user's failed on the sample `id`.

        Args:
            error: The error of a batch.
            id: The row in the index of a sample that ran alone; None for a larger batch.
        """
        failed = take_failure()
        if id is not None and isinstance(failed, StepError):
            raise failed.at_sample(self._job.index.location(id)) from error
        failure = machine_failure(error)
        if not failure and (refused := find_refused_dtype(str(error))):
            failure = (
                f"an operator of DALI does not take what a step gave it: {refused.rstrip('.')}. "
                f"Write 'to_dtype: {{dtype: float32}}' before that step"
            )
        if failure:
            where = "" if id is None else f". It happened at {self._job.index.location(id)}"
            raise EngineError(failure + where) from error

    def to_fields(self, tensors: Tensors) -> Batch:
        """Return the delivered fields of a batch, after checking the output of plugin steps."""
        with span("hand-over", "loader"):
            batch = {
                name: tensor
                if name.endswith(SHAPES)
                else to_field(self._job, name.removesuffix(self._suffix), tensor)
                for name, tensor in tensors.items()
            }
            check_batch(self._job, batch)
            return batch

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Read the files of the plans, and yield how many samples of each plan were read."""
        for first in plans:
            self._reader.start(chain([first], plans))
            yield from (len(read.plan.ids) * (read.error is None) for read in self._reader)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Run all steps but deliver no batch; yield how many samples of each plan passed them."""
        for plan, outcome in self._runner.run_undelivered(plans):
            if isinstance(outcome, RuntimeError):
                self._raise_unless_sample_failed(outcome)
            yield 0 if isinstance(outcome, RuntimeError) else len(plan.ids)

    def stop(self) -> None:
        """Take no more plans, and drop the batches in flight."""
        self._runner.stop()

    def close(self) -> None:
        """Release the graph, its threads and its memory. Idempotent."""
        # A GPU that has failed raises here. Closing must not hide why it failed.
        with suppress(RuntimeError):
            self._runner.stop()
        # DALI's operators and the source refer to one another. If the reader did not close, its
        # pipeline would stay alive until a garbage collection.
        self._reader.close()
        self._runner.close()
        self._known_good.close()
