"""Skips samples that cannot be read or decoded, or raises; enforces `loader.max_bad`.

`explain_sample_failure` says in one line why a sample failed: with the line of the engine's message
that states a cause (`find_cause`), and with the damage that the first and last bytes of its file
show (`describe_damage`).
"""

import json
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.decoders.image_header import read_header
from gpupipe.engines.base import Batch, BatchStream, Engine, Job
from gpupipe.errors import (
    DataError,
    EngineError,
    GpupipeError,
    SampleError,
    TooManyBadError,
    describe_error,
)
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.failures import machine_errors
from gpupipe.runtime.files import cache_dir
from gpupipe.sampling.sampler import Plan

_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "JPEG 2000": b"\xff\xd9"}
_TAIL_BYTES = 64
_UNINFORMATIVE = (
    "Failed to decode",
    "nvImageCodec failure",
    "the file is empty",
    "not an image in a known format",
    "a JPEG that was cut off",  # raised by dali/files.py, and repeated by `describe_damage`
    "Image is incomplete or truncated",
    'Assert on "fp_ != nullptr" failed',
    'Assert on "read_nbytes == file_size" failed',
)
"""Prefixes of messages that name no cause. `describe_damage` then explains as much, or more."""
_PREAMBLE = ("Critical error", "Error in", "C++ context", "Current pipeline")
_TORCHVISION_SOURCE = re.compile(r"^\w+, \S+\.cpp:\d+, ")
"""The prefix of torchvision's errors that names a C++ file and line; `find_cause` removes it."""


class Quarantine:
    """The set of bad samples of a job, which engines skip and list in a file.

    Attributes:
        settings: The `loader:` settings that this class uses.
        reasons: Why each bad sample was skipped, by its row in the index.
        refusal: The error that ended `iter_good_plans` early, or None. The engine raises it after
            it has delivered all earlier batches.
        file: The JSON lines file that lists the samples; by default in the cache folder.
    """

    settings = frozenset({"on_error", "max_bad", "quarantine"})

    def __init__(self, job: Job) -> None:
        self._job = job
        self.reasons: dict[int, str] = {}
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

        The generator sets `refusal` and ends in three cases: a sample has faults in its annotations
        and `add` raises; all samples of a plan are bad and there are other ranks, which would then
        run more steps than this rank; or all samples of an epoch are bad.
        """
        has_samples = True  # in this epoch, which may have begun before this iteration
        for plan in plans:
            try:
                self._add_faults(plan)
                good = self.drop_bad(plan)
                if not len(good.ids):
                    self.refuse_to_lose_a_step()
            except GpupipeError as e:
                self.refusal = e
                return
            if len(good.ids):
                has_samples = True
                yield good
            elif plan.last and not has_samples:
                self.refusal = TooManyBadError(
                    f"every sample of epoch {plan.epoch} is one that was skipped before: "
                    f"see {self.file}"
                )
                return
            has_samples = has_samples and not plan.last

    def _add_faults(self, plan: Plan) -> None:
        """Add the samples of a plan whose annotations cannot be used; raise as `add` does."""
        index, rows = self._job.index.resolve(plan.ids)
        if len(index.faults):
            for n in np.flatnonzero(np.isin(rows, index.faults.rows)).tolist():
                self.add(int(plan.ids[n]), index.faults.explain(int(rows[n])))

    def refuse_to_lose_a_step(self) -> None:
        """Raise EngineError if there are other ranks. Call this before a whole batch is skipped.

        Otherwise the other ranks would run more steps than this rank.
        """
        if self._job.loader.shard.world_size > 1:
            raise EngineError(
                "every sample of a batch was skipped, and this rank would have fewer steps than "
                "the others: make loader.batch_size larger"
            )

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
        last = next(reversed(self.reasons))
        raise TooManyBadError(
            f"{bad} of {count} samples cannot be read, {too_many}; the last is "
            f"{self._job.index.location(last)}: {self.reasons[last]}. All are listed in {self.file}"
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
        return self._deliver_good(plans, self._batches)

    def _deliver_good(
        self, plans: Iterator[Plan], run: Callable[[Iterator[Plan]], Iterator[tuple[Plan, Batch]]]
    ) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield what `run` yields for the plans without the samples that are known to be bad."""
        with machine_errors():
            self.quarantine.check()
            self.quarantine.refusal = None
            yield from run(self.quarantine.iter_good_plans(plans))
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


def find_suspects(index: Index, ids: NDArray[np.int64]) -> list[bool]:
    """Return for each sample whether the first and last bytes of one of its files look broken.

    Such a sample may still decode. So the engine runs the sample alone before reporting it as bad.
    """
    columns = _image_columns(index).values()
    return [any(describe_damage(column, int(i)) for column in columns) for i in ids]


def _image_columns(index: Index) -> dict[str, Column]:
    """Return the columns of image files, by field."""
    return {name: column for name, column in index.columns.items() if column.array is None}


def explain_sample_failure(index: Index, id: int, message: str) -> str:
    """Return in one line why sample `id` failed; `message` is the engine's error message.

    The line is about the first image field whose file looks broken, or, if none looks broken, about
    the first image field.
    """
    columns = _image_columns(index)
    if not columns:
        return find_cause(message)
    damaged = (name for name, column in columns.items() if describe_damage(column, id))
    field = next(damaged, next(iter(columns)))
    where = f"its {field}, {index.location(id, field)}: " if field != index.main else ""
    return where + explain_image_failure(columns[field], id, message)


def describe_damage(column: Column, row: int) -> str:
    """Read an image file's first and last bytes, and describe the damage that they show, or "".

    It detects files that are missing, empty, too short, of no known format, or cut off.

    Raises:
        EngineError: The process lacks memory or open files, so that the file cannot be read.
    """
    try:
        with machine_errors():
            head, tail, size = column.read_ends(row, 16, _TAIL_BYTES)
    except (OSError, ValueError) as e:
        return describe_error(e)
    return describe_ends(head, tail, size)


def describe_ends(head: bytes, tail: bytes, size: int) -> str:
    """Describe the damage that an image file's first and last bytes show; "" if they look right.

    Args:
        head: The first 16 bytes or more.
        tail: The last 64 bytes or more.
        size: The size of the file in bytes.
    """
    if not head:
        return "the file is empty"
    kind = read_header(head).format
    if not kind:
        return f"not an image in a known format (it begins with {head!r})"
    match kind:
        case "BMP":
            is_cut_off = size < int.from_bytes(head[2:6], "little")
        case "WebP":
            is_cut_off = size < int.from_bytes(head[4:8], "little") + 8
        case _:
            is_cut_off = _END_MARKERS.get(kind, b"") not in tail
    if is_cut_off:
        return f"a {kind} that was cut off: its end is missing ({size:,} bytes are there)"
    return ""


def explain_image_failure(column: Column, row: int, message: str) -> str:
    """Return in one line why the image file in `row` failed, by `message` and the file's bytes."""
    line, damage = find_cause(message), describe_damage(column, row)
    if not line.startswith(_UNINFORMATIVE) and line != damage:
        return f"cannot be decoded or transformed: {line}" + (f" ({damage})" if damage else "")
    return damage or (
        "cannot be decoded: its data are damaged, or of a kind that the decoder does not know "
        f"({line.rstrip(' :')})"
    )


def find_cause(message: str) -> str:
    """Return the first line of an engine's message that states a cause.

    It skips DALI's preamble, such as "Critical error in pipeline" and "Error in CPU operator".
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    candidates = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    causes = (line for line in candidates if not line.startswith(_PREAMBLE))
    cause = next(causes, "no reason given")
    return _TORCHVISION_SOURCE.sub("", cause.removeprefix("Error: "))
