"""Runs a failed batch again without the samples that are to blame.

DALI loses a whole batch if one sample fails. So BatchRepair runs the samples one by one, suspects
first, and quarantines those that fail. Then it runs the good samples as one batch. It blames no
sample if the machine failed: if DALI's message says so, or if a known good image fails too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, types
from PIL import Image

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.bad_samples import Quarantine
from gpupipe.engines.base import Job
from gpupipe.engines.batch import Shapes, check_shapes
from gpupipe.engines.dali.graph_runner import GraphRunner, Tensors
from gpupipe.engines.dali.lowering import to_field
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.failure_reasons import (
    explain_sample_failure,
    find_cause,
    find_refused_dtype,
    find_suspects,
)
from gpupipe.errors import EngineError
from gpupipe.runtime.failures import machine_failure
from gpupipe.sampling.sampler import Plan

_SIDE = 32
"""The height and width of the known good image."""


class BatchRepair:
    """Finds the samples of failed batches that are to blame.

    Args:
        job: The job.
        runner: Runs the samples.
        quarantine: Gets the samples that failed.
        known_good: Tells a broken machine from a broken sample.
    """

    def __init__(
        self, job: Job, runner: GraphRunner, quarantine: Quarantine, known_good: KnownGood
    ) -> None:
        self._job, self._runner = job, runner
        self._quarantine, self._known_good = quarantine, known_good

    def repair(self, plan: Plan, error: RuntimeError) -> Iterator[tuple[Plan, Tensors]]:
        """Find the samples that fail alone, suspects first, and run the good samples again.

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
        raise_unless_sample_failed(self._job, error)
        suspicious = plan.select(find_suspects(self._job.index, plan.ids))
        if len(suspicious.ids) and self._try_alone(suspicious):
            rest = self._run_good(plan)
            if not isinstance(rest, RuntimeError):
                yield from rest
                return
        self._try_alone(self._quarantine.drop_bad(plan))
        rest = self._run_good(plan)
        if isinstance(rest, RuntimeError):
            raise_unless_sample_failed(self._job, rest)
            raise EngineError(
                "DALI failed twice on a batch whose samples pass one by one, the first of "
                f"them {self._job.index.location(int(plan.ids[0]))}: {rest}"
            ) from error
        yield from rest

    def _try_alone(self, plan: Plan) -> bool:
        """Run the samples of a plan one by one, and quarantine those that fail.

        Return whether any failed.
        """
        shapes: list[Shapes] = []
        has_failures = False
        alone_plans = (plan.select([i]) for i in range(len(plan.ids)))
        for alone, outcome in self._runner.run_all(alone_plans):
            if not isinstance(outcome, RuntimeError):
                shapes.append(
                    {
                        name: tuple(to_field(self._job, name, tensor).shape[1:])
                        for name, tensor in outcome.items()
                    }
                )
                continue
            has_failures = True
            id = int(alone.ids[0])
            raise_unless_sample_failed(self._job, outcome, id)
            self._known_good.check(str(outcome))
            self._quarantine.add(id, explain_sample_failure(self._job.index, id, str(outcome)))
        if not has_failures:
            check_shapes(shapes, plan, self._job)
        return has_failures

    def _run_good(self, plan: Plan) -> list[tuple[Plan, Tensors]] | RuntimeError:
        """Run the good samples of a plan as one batch. Return [] if no sample is good."""
        good = self._quarantine.drop_bad(plan)
        if not len(good.ids):
            self._quarantine.refuse_to_lose_a_step()
            return []
        outcomes = list(self._runner.run([good]))
        failed = next((o for _, o in outcomes if isinstance(o, RuntimeError)), None)
        return failed or [(p, o) for p, o in outcomes if not isinstance(o, RuntimeError)]


def raise_unless_sample_failed(job: Job, error: RuntimeError, id: int | None = None) -> None:
    """Raise EngineError if the machine failed, or an operator refused the dtype of all samples.

    Args:
        job: The job.
        error: The error of a batch.
        id: The sample's row in the index, if it ran alone.
    """
    failure = machine_failure(error)
    if not failure and (refused := find_refused_dtype(str(error))):
        failure = (
            f"an operator of DALI does not take what a step gave it: {refused.rstrip('.')}. "
            f"Write 'to_dtype: {{dtype: float32}}' before that step"
        )
    if failure:
        raise EngineError(
            failure if id is None else f"{failure}. It happened at {job.index.location(id)}"
        ) from error


class KnownGood:
    """Decodes a small valid JPEG with the decoder that the engine uses on the same device.

    The first check builds a DALI pipeline and keeps it. Later checks take 0.1 ms on a CPU.

    Args:
        device_id: The GPU's number, or None for DALI's CPU back end.
    """

    def __init__(self, device_id: int | None) -> None:
        self._device_id = device_id
        self._pipe: Any = None

    def check(self, message: str) -> None:
        """Raise EngineError if DALI cannot decode the valid JPEG.

        Args:
            message: The error message of a sample that failed before.
        """
        try:
            self._decode()
        except RuntimeError as e:
            self._pipe = None
            first, why = (find_cause(text).rstrip(" :") for text in (message, str(e)))
            raise EngineError(
                "DALI cannot decode an image that nothing is wrong with "
                f"({machine_failure(e) or why}), so that no sample is "
                f"to blame for '{first}': `gpupipe doctor` looks at the machine"
            ) from e

    def close(self) -> None:
        """Release the pipeline. Idempotent."""
        self._pipe = None

    def _decode(self) -> None:
        if self._device_id is not None:
            # raises any earlier error that has corrupted the GPU's context
            torch.cuda.synchronize(self._device_id)
        if self._pipe is None:
            self._pipe = self._build()
        (decoded,) = self._pipe.run()
        decoded.as_cpu()

    def _build(self) -> Any:
        encoded, device = _jpeg(), "cpu" if self._device_id is None else "gpu"
        pipe = Pipeline(1, 1, self._device_id, prefetch_queue_depth=1, exec_dynamic=True)
        with pipe:
            data = fn.external_source(lambda: [encoded], batch=True, dtype=types.UINT8, ndim=1)
            pipe.set_outputs(ops.decode(data, device, DecodeOptions(), {}))
        pipe.build()
        return pipe


def _jpeg() -> np.ndarray[Any, np.dtype[np.uint8]]:
    shades = np.add.outer(np.arange(_SIDE), np.arange(_SIDE)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(shades).convert("RGB").save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)
