"""The Ray engine: batches come from workers of a Ray cluster.

1. The trainer's sampler makes the plans. A task is one plan. The object store holds the job (index
   and steps) once, and each node fetches it once.
2. Each worker runs its own engine, which gets the plans as a stream. The worker answers with arrays
   in the object store (actor.py, worker.py).
3. The dispatcher's thread keeps every worker supplied. It sends the tasks of workers that die or
   lag to other workers (dispatcher.py).
4. The delivery's thread maps the answers without a copy, runs the steps that the workers leave to
   the trainer, and copies to the GPU (Delivery). The training thread takes finished batches.
5. The state is only the sampler's position. Plans and draws are functions of that position, so
   every worker makes the same batch from a plan.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import torch

from gpupipe.config import LoaderConfig
from gpupipe.engines.bad_samples import Quarantine, QuarantiningEngine
from gpupipe.engines.base import Batch, EngineTraits, Job
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.last_steps import BatchFinisher, find_larger_output, find_tail, leave_steps
from gpupipe.engines.ray.cluster import connect, count_workers
from gpupipe.engines.ray.dispatcher import Autoscaler, PlanDispatcher
from gpupipe.engines.ray.pool import RayWorkerPool
from gpupipe.engines.ray.status import ObjectStoreReader, StatusFile, TrainerStatus, WaitMeter
from gpupipe.engines.ray.worker import BatchAnswer, unpack
from gpupipe.errors import EngineError
from gpupipe.pipeline.user_calls import explain_nameless
from gpupipe.runtime.memory import record_stream
from gpupipe.runtime.process import ExitHandler
from gpupipe.runtime.ranks import ranks_on_machine
from gpupipe.sampling.sampler import Plan, Sampler

_log = logging.getLogger("gpupipe")
USABLE_SHARE = 0.8
"""Ray's default of `object_spilling_threshold`: the share of the object store that Ray fills before
it writes to disk. Writing a batch to disk takes longer than making it.
"""
_MB = 1e6
_HELD = 2
"""Batches that the consumer holds: the current one and the one before it."""
_MIN_WINDOW = 2
_CPU = torch.device("cpu")
_Finished = tuple[Plan, Batch]


class Delivery(threading.Thread):
    """A thread that finishes the batches from workers before the consumer asks for them.

    Iterating over it yields each plan with its finished batch, in the order of the plans.

    Args:
        job: The job with all steps, those of the workers and those of the trainer.
        dispatcher: Collects the workers' answers. This thread starts and ends it.
        finish: Runs the trainer's steps, and copies the batch to the trainer's device.
        quarantine: Lists the samples that workers skipped.

    Attributes:
        dispatcher: The dispatcher that collects the workers' answers.
    """

    def __init__(
        self, job: Job, dispatcher: PlanDispatcher, finish: BatchFinisher, quarantine: Quarantine
    ) -> None:
        super().__init__(name="gpupipe ray delivery", daemon=True)
        self._job, self.dispatcher = job, dispatcher
        self._finish, self._quarantine = finish, quarantine
        self._room = threading.Semaphore(job.loader.prefetch)
        """Counts how many more batches the thread may finish before the consumer takes one."""
        self._finished: SimpleQueue[_Finished | BaseException | None] = SimpleQueue()
        """The finished batches; then None, or the error that ended the thread."""

    def __iter__(self) -> Iterator[_Finished]:
        while (finished := self._finished.get()) is not None:
            if isinstance(finished, BaseException):
                raise finished
            self._room.release()
            yield finished
            del finished

    def end(self) -> None:
        """End the thread and the dispatcher, and drop all batches. Idempotent."""
        self.dispatcher.end()
        self._room.release()
        self.join()
        self._finished = SimpleQueue()
        self._finished.put(None)

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self.dispatcher.start()
            while self._room.acquire() and (answered := self.dispatcher.take()) is not None:
                finished = self._to_batch(*answered)
                del answered
                if finished is None:
                    self._room.release()
                else:
                    self._finished.put(finished)
                del finished
        except BaseException as e:  # of any kind: the consumer would wait for ever
            error = e
        self._finished.put(error)

    def _to_batch(self, plan: Plan, answer: BatchAnswer) -> _Finished | None:
        """Return the plan and its finished batch; None if all its samples were skipped.

        Raises the answer's error if it has one.
        """
        if answer.error is not None:
            raise answer.error
        for id, reason in answer.skipped.items():
            self._quarantine.add(id, reason)
        if answer.kept is not None:
            plan = plan.select(answer.kept)
            if not len(plan.ids):
                self._quarantine.refuse_to_lose_a_step()
                return None
        fields = {name: unpack(packed) for name, packed in answer.fields.items()}
        tensors = fields | labels_and_values(self._job.index, plan, _CPU)
        return plan, self._finish(tensors, plan)


class RayEngine(QuarantiningEngine):
    """Delivers batches that workers of a Ray cluster make.

    Args:
        job: Samples, steps and settings of the loader.
        gpu: Number of the trainer's GPU; None delivers on the CPU.

    Attributes:
        pool: The workers.

    Raises:
        EngineError: The cluster has no room for the workers, or a worker cannot run the job.
    """

    name = "ray"
    settings = (
        Sampler.settings
        | Quarantine.settings
        | {
            "ray",
            "hwm",
            "prefetch",
            "dtype",
            "memory_format",
            "shapes",
            "decoder",
            "hw_decoder_load",
        }
    )
    traits = EngineTraits(
        unit="worker",
        parallelism_setting="ray",
        reads_elsewhere=True,
        keeps_decoded=True,  # the engines of a node's workers share a cache
        comparison_note="Ray's workers are held to the cores of the other sides only if gpupipe "
        "starts Ray itself: a Ray cluster that runs here already has cores of its own",
    )

    def __init__(self, job: Job, gpu: int | None) -> None:
        super().__init__(job, gpu)
        if mistake := explain_nameless(job.pipeline):
            raise EngineError(mistake)
        options = job.loader.ray
        worker_job, own_job = split_job(job)
        self._finish = BatchFinisher(own_job, gpu)
        self._delivery: Delivery | None = None
        with ExitStack() as opened:
            self._cluster = connect(options.address)
            opened.callback(self._cluster.close)
            workers = count_workers(job.loader, self._cluster)
            self.pool = RayWorkerPool(self._cluster, worker_job, workers)
            opened.callback(self.pool.close)
            self.pool.start()
            self._window = self._choose_window()
            self.traits = self.traits.with_counts(self.pool.target, self._window)
            limits = options.workers if isinstance(options.workers, tuple) else None
            self._meter = WaitMeter(Autoscaler(self.pool, limits).step if limits else None)
            self._store = ObjectStoreReader()
            opened.callback(StatusFile(self._describe).close)
            self._opened = opened.pop_all()
        self._at_exit = ExitHandler(self.close)

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        return {"Ray": {}}

    def _batches(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        dispatcher = PlanDispatcher(self.pool, plans, self._window)
        delivery = Delivery(self._job, dispatcher, self._finish, self.quarantine)
        self._delivery = delivery
        delivery.start()
        try:
            for plan, batch in self._meter.measure(delivery):
                if self._torch_device.type == "cuda":
                    record_stream(batch, torch.cuda.current_stream(self._torch_device))
                if self.pool.target != self.traits.parallelism:  # the autoscaler changed it
                    self.traits = self.traits.with_counts(self.pool.target, self._window)
                yield plan, batch
                del batch  # its memory in the object store is the user's alone
        finally:
            delivery.end()

    def _choose_window(self) -> int:
        """Return how many batches may be made ahead of the trainer at most; see `choose_window`."""
        limits = self._job.loader.ray.workers
        workers = limits[1] if isinstance(limits, tuple) else self.pool.target
        batch_bytes, store_bytes = self.pool.measure_batch(), self._cluster.object_store_bytes()
        return choose_window(self._job.loader, workers * self.pool.depth, batch_bytes, store_bytes)

    def _describe(self) -> TrainerStatus:
        """Return the status of the workers. Only rank 0 reads the counters of the object stores."""
        shard = self._job.loader.shard
        with self.pool.changed:
            workers = [(worker.facts.node, len(worker.out)) for worker in self.pool.ready]
        return TrainerStatus(
            rank=shard.rank,
            world_size=shard.world_size,
            workers=workers,
            target=self.pool.target,
            tasks_out=self._delivery.dispatcher.tasks_out if self._delivery is not None else 0,
            window=self._window,
            batches=self._meter.batches,
            wait_share=self._meter.wait_share,
            store=self._store.read() if shard.rank == 0 else None,
        )

    def close(self) -> None:
        self._at_exit.cancel()
        if self._delivery is not None:
            self._delivery.end()
        self._opened.close()


def split_job(job: Job) -> tuple[Job, Job]:
    """Split a job into the workers' job and the trainer's job.

    With `ray.ship: uint8`, the trainer runs the last steps, if they can run on uint8 batches.
    Otherwise the workers run all steps.
    """
    options = job.loader
    ships_uint8 = options.ray.ship == "uint8" and options.shapes == "equal"
    positions = find_tail(job.pipeline) if ships_uint8 else ()
    shorter = job.pipeline.without_entries(positions)
    if find_larger_output(shorter) is not None:
        positions, shorter = (), job.pipeline
    threads = options.ray.cpus
    settings: dict[str, Any] = {"dtype": None if positions else options.dtype, "threads": threads}
    # For the DataLoader inside a worker. A fork would copy the locks of Ray's threads.
    settings |= {"workers": threads if threads > 1 else 0}
    if options.multiprocessing_context in (None, "fork"):
        settings |= {"multiprocessing_context": "forkserver"}
    worker_job = replace(
        job, pipeline=shorter, loader=options.model_copy(update=settings), threads=threads
    )
    return worker_job, leave_steps(job, positions)


def choose_window(loader: LoaderConfig, busy: int, batch_bytes: int, store_bytes: int) -> int:
    """Return the maximum number of tasks of one trainer: plans whose batches it has not taken.

    Args:
        loader: The settings. If the config sets `hwm`, the result is that number.
        busy: The number of tasks that keeps all workers busy.
        batch_bytes: The size in bytes of a batch as workers send it; 0 if it is not known.
        store_bytes: The size of the node's object store in bytes. All trainers of the node share
            it.

    Raises:
        EngineError: The object store is too small.
    """
    is_explicit, trainers = "hwm" in loader.model_fields_set, ranks_on_machine()
    wanted = loader.hwm if is_explicit else max(loader.hwm, busy)
    if not batch_bytes:
        return wanted
    kept = loader.prefetch + _HELD
    largest = int(USABLE_SHARE * store_bytes / trainers / batch_bytes) - kept
    if wanted <= largest:
        return wanted
    if is_explicit or largest < _MIN_WINDOW:
        count = ((wanted if is_explicit else _MIN_WINDOW) + kept) * trainers
        raise EngineError(
            f"Ray's object store on this node is too small: {count} batches of "
            f"{batch_bytes / _MB:.1f} MB need {count * batch_bytes / _MB:.0f} MB, and "
            f"{USABLE_SHARE:.0%} of {store_bytes / _MB:.0f} MB are usable before Ray writes to "
            "disk: lower loader.batch_size or loader.hwm, keep loader.ray.ship at uint8, or start "
            "Ray with a larger --object-store-memory"
        )
    _log.warning(
        f"gpupipe: {largest} instead of {wanted} batches are made ahead, since Ray's object store "
        f"is {store_bytes / _MB:.0f} MB and a batch {batch_bytes / _MB:.1f} MB"
    )
    return largest
