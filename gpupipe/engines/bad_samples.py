"""Skips samples that cannot be read or decoded, or raises; enforces `loader.max_bad`.

`failure_reasons` finds out why a sample failed.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping

import torch

from gpupipe.engines.base import Batch, BatchStream, Engine, Job
from gpupipe.engines.failure_reasons import explain_sample_failure
from gpupipe.errors import DataError, EngineError, GpupipeError, SampleError, TooManyBadError
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.failures import machine_errors
from gpupipe.runtime.files import cache_dir
from gpupipe.sampling.sampler import Plan

_LOST_STEP = (
    "every sample of a batch was skipped, and this rank would have fewer steps than the "
    "others: make loader.batch_size larger"
)


class Quarantine:
    """The set of bad samples of a job, which engines skip and list in a file.

    Attributes:
        settings: The `loader:` settings that this class uses.
        reasons: Why each bad sample was skipped, by its row in the index.
        refusal: The error that ended `iter_good_plans` early, or None. The engine raises it after
            it has delivered all earlier batches.
        file: The JSON lines file that lists the samples. By default it is in the cache folder,
            under the fingerprint of the index.
    """

    settings = frozenset({"on_error", "max_bad", "quarantine"})

    def __init__(self, job: Job) -> None:
        self._job = job
        self.reasons: dict[int, str] = {}
        self._last = ""
        self.refusal: GpupipeError | None = None
        self.file = (
            job.loader.quarantine or cache_dir() / "quarantine" / f"{job.index.fingerprint}.jsonl"
        )

    def __len__(self) -> int:
        return len(self.reasons)

    def drop_bad(self, plan: Plan) -> Plan:
        """Return the plan without the samples that are known to be bad."""
        if not self.reasons:
            return plan
        return plan.select([int(i) not in self.reasons for i in plan.ids])

    def iter_good_plans(self, plans: Iterator[Plan]) -> Iterator[Plan]:
        """Yield the plans without the samples that are known to be bad, and skip empty plans.

        The generator sets `refusal` and ends in two cases: all samples of a plan are bad, so that
        this rank would run fewer steps than other ranks; or all samples of an epoch are bad.
        """
        has_samples = True  # in this epoch, which may have begun before this iteration
        for plan in plans:
            good = self.drop_bad(plan)
            if len(good.ids):
                has_samples = True
                yield good
            elif self._job.loader.shard.world_size > 1:
                self.refusal = EngineError(_LOST_STEP)
            elif plan.last and not has_samples:
                self.refusal = TooManyBadError(
                    f"every sample of epoch {plan.epoch} is one that was skipped before: "
                    f"see {self.file}"
                )
            if self.refusal is not None:
                return
            has_samples = has_samples and not plan.last

    def refuse_to_lose_a_step(self) -> None:
        """Raise EngineError if other ranks would run more steps because this one skips a batch."""
        if self._job.loader.shard.world_size > 1:
            raise EngineError(_LOST_STEP)

    def add(self, id: int, reason: str) -> None:
        """Skip a sample from now on, and list it in `file`.

        Args:
            id: The sample's row in the index.
            reason: Why it cannot be used, in one line.

        Raises:
            SampleError: `loader.on_error` is "raise".
            TooManyBadError: All samples are bad, or more than `loader.max_bad` allows.
            DataError: `file` cannot be written.
        """
        path = self._job.index.location(id)
        if self._job.loader.on_error == "raise":
            raise SampleError(path, reason)
        if id in self.reasons:
            return
        self._write({"path": path, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        self.reasons[id] = reason
        self._last = f"{path}: {reason}"
        self.check()

    def check(self) -> None:
        """Raise TooManyBadError if all samples are bad, or more than `loader.max_bad` allows."""
        bad, count, share = len(self.reasons), len(self._job.index), self._job.loader.max_bad
        if bad > share * count:
            too_many = f"more than loader.max_bad={share:g} allows ({share * count:g})"
        elif bad and bad == count:
            too_many = "so nothing is left to deliver"
        else:
            return
        raise TooManyBadError(
            f"{bad} of {count} samples cannot be read, {too_many}; the last is "
            f"{self._last}. All are listed in {self.file}"
        )

    def _write(self, record: dict[str, str]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as f:
                f.write(json.dumps(record) + "\n")
        except OSError as e:
            raise DataError(
                f"{record['path']}: {record['reason']}; it would be left out, but the list "
                f"of such samples, {self.file}, cannot be written "
                f"({e.strerror or e}): set loader.quarantine to a file that can"
            ) from e


class QuarantiningEngine(Engine, abstract=True):
    """An engine that skips bad samples, and lists them in `quarantine`.

    Args:
        job: The samples, the steps and the loader settings.
        device_id: Number of the GPU where batches are delivered; None for the CPU.

    Attributes:
        quarantine: The samples that were skipped so far.
    """

    def __init__(self, job: Job, device_id: int | None) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = torch.device(self.device.replace("gpu", "cuda"))
        self._job = job
        self.quarantine = Quarantine(job)

    @classmethod
    def on(cls, job: Job, device: str) -> Engine:
        return cls(job, resolve(device))

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        with machine_errors():
            self.quarantine.check()
            self.quarantine.refusal = None
            yield from self._batches(self.quarantine.iter_good_plans(plans))
            if self.quarantine.refusal is not None:
                raise self.quarantine.refusal

    @abstractmethod
    def _batches(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        """Yield each plan with its batch, in order. `plans` holds no sample known to be bad."""

    def _quarantine_failed(self, plan: Plan, failed: Mapping[int, str]) -> Plan:
        """Quarantine the samples that failed; return the plan without their ids.

        Args:
            plan: The plan of a batch.
            failed: The engine's message for each sample that failed, by its position in the plan.
        """
        for position, message in failed.items():
            id = int(plan.ids[position])
            self.quarantine.add(id, explain_sample_failure(self._job.index, id, message))
        if not failed:
            return plan
        left = plan.select([n not in failed for n in range(len(plan.ids))])
        if not len(left.ids):
            self.quarantine.refuse_to_lose_a_step()
        return left


def list_skipped(engine: BatchStream) -> Mapping[int, str]:
    """Return a one-line reason for each skipped sample, by the sample's row in the index."""
    return engine.quarantine.reasons if isinstance(engine, QuarantiningEngine) else {}
