"""A pipeline built for DALI: it runs the plans of one phase, in which no schedule changes a step.

The operators of a DALI graph cannot be changed after it is built. So when a schedule changes a
step, the engine closes one BuiltPipeline and creates the next. Objects that do not depend on the
steps, such as the quarantine, outlive it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.engines.bad_samples import Quarantine
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.dali.cached_reader import CachedReader
from gpupipe.engines.dali.checks import check_batch
from gpupipe.engines.dali.field_readers import FieldReader
from gpupipe.engines.dali.graph_runner import GraphRunner, Outcome, Tensors
from gpupipe.engines.dali.lowering import Lowering, to_field
from gpupipe.engines.dali.reader import Reader, make_reader
from gpupipe.engines.dali.repair import BatchRepair, KnownGood, raise_unless_sample_failed
from gpupipe.sampling.sampler import Plan


@dataclass(frozen=True)
class BuildOptions:
    """How an engine builds its pipelines.

    Attributes:
        device_id: The GPU's number, or None for DALI's CPU back end.
        may_cut: Whether the decoder may decode a region of an image.
        checks_jpegs: Whether to refuse JPEGs without an end marker, and to let gpupipe.decoders
            decode JPEGs that look damaged.
        warm_up: Whether to decode a full batch first if the first batch is short.
        fields: The readers of the fields that DALI does not read itself, by field name.
        cache: The decoded cache, or None.
    """

    device_id: int | None
    may_cut: bool
    checks_jpegs: bool
    warm_up: bool
    fields: Mapping[str, FieldReader]
    cache: DecodedCache | None = None


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
        device_id, fields, cache = options.device_id, options.fields, options.cache
        self.lowering = lowering = Lowering(
            job,
            "cpu" if device_id is None else "gpu",
            options.may_cut,
            done=None if cache is None else cache.count_steps(),
        )
        self._reader: Reader = (
            make_reader(job, lowering.decodings(), fields, options.checks_jpegs)
            if cache is None
            else CachedReader(job, cache, fields, options.checks_jpegs, options.may_cut)
        )
        warm_up = min(job.loader.batch_size, len(job.index)) if options.warm_up else 0
        self._runner = GraphRunner(job, lowering, device_id, self._reader, fields, warm_up)
        self._known_good = KnownGood(device_id)
        self._repair = BatchRepair(job, self._runner, quarantine, self._known_good)

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
        """Yield the tensors of `outcomes` in order; failed ones run again without bad samples."""
        for plan, outcome in outcomes:
            if isinstance(outcome, RuntimeError):
                yield from self._repair.repair(plan, outcome)
            else:
                yield plan, outcome

    def to_fields(self, tensors: Tensors) -> Batch:
        """Return the delivered fields of a batch, after checking the output of plugin steps."""
        batch = {name: to_field(self._job, name, tensor) for name, tensor in tensors.items()}
        check_batch(self._job, batch)
        return batch

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Read the files of the plans, and do nothing else; yield how many samples each read."""
        for first in plans:
            self._reader.start(chain([first], plans))
            yield from (len(read.plan.ids) * (read.error is None) for read in self._reader)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Run all steps but deliver no batch; yield how many samples of each plan passed them."""
        for plan, outcome in self._runner.run_undelivered(plans):
            if isinstance(outcome, RuntimeError):
                raise_unless_sample_failed(self._job, outcome)
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
