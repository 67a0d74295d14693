"""Torch's DataLoader with its worker processes, and the iterator that runs now.

1. Closing an iteration cancels the batches in flight. Persistent workers stay for the next one.
2. If a worker dies, the others are ended.
3. Workers are ended explicitly. A traceback may keep torch's iterator alive, and its workers with
   it. If the cyclic garbage collector frees the iterator, the queue that tells workers to stop is
   freed first: ending them takes five seconds each, and on Python 3.13 a thread of torch fails.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpupipe.config import LoaderConfig
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import AUTO, REFERENCE, DecoderChain
from gpupipe.engines.base import Job
from gpupipe.engines.dataloader.culprits import CRASHES, WorkerCrashed
from gpupipe.engines.dataloader.samples import Recipe, Samples, WorkResult
from gpupipe.engines.dataloader.worker_death import (
    end_workers,
    explain_failure,
    find_dead_workers,
    limit_to_one_thread,
    remove_shared_memory,
    stop_watching,
)
from gpupipe.engines.dataloader.works import Works
from gpupipe.errors import EngineError, counted
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.devices import cores
from gpupipe.runtime.forked_children import end_with_parent
from gpupipe.runtime.transfer import on_device


class Workers:
    """Runs work items in worker processes, or in this process if there are none.

    Args:
        job: Samples, steps and settings of the loader.
        works: The work items of the iteration that runs.
        count: How many worker processes there are.
        device: Where batches go. For a GPU they are in page-locked memory.
        cache: The decoded cache, or None.
    """

    def __init__(
        self,
        job: Job,
        works: Works,
        count: int,
        device: torch.device,
        cache: DecodedCache | None = None,
    ) -> None:
        self._cache = cache
        self._job, self._works, self._count, self._device = job, works, count, device
        self._loader: DataLoader[WorkResult] | None = self._create_loader()
        self._results: Iterator[WorkResult] = iter(())
        self._started = False
        """Whether the current workers have made a batch."""

    def start(self, samples: Samples | None = None) -> None:
        """Start an iteration, and its workers.

        Args:
            samples: Makes results of another kind, in workers of their own.

        Raises:
            EngineError: A worker died.
            WorkerCrashed: A sample most likely killed a worker.
        """
        loader = self._loader if samples is None else self._create_loader(samples)
        self._started = self._started and loader is not None and loader.persistent_workers
        previous = getattr(loader, "_iterator", None)  # of persistent workers
        try:
            with _ignore_torch_warning(), on_device(self._device):
                self._results = iter(()) if loader is None else iter(loader)
            stop_watching(self._results)
            return
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._end_after(e, previous)) is None:
                raise
        raise failed

    def next(self) -> WorkResult | None:
        """Return the next result, or None after the last.

        Raises StepError if a step's code failed, EngineError if a worker died, and WorkerCrashed if
        a sample most likely killed it.
        """
        try:
            one_thread = nullcontext() if self._count else limit_to_one_thread()
            with one_thread, on_device(self._device):
                result = next(self._results, None)
            self._started = True
            if error := self._works.failed if result is None else result.error:
                raise error
            return result
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._end_after(e)) is None:
                raise
        raise failed

    def cancel(self) -> None:
        """End the iteration, and cancel the batches in flight."""
        results, self._results = self._results, iter(())
        if not getattr(results, "_persistent_workers", False):
            _end_iterator(results)

    def restart(self) -> None:
        """Replace workers that were ended."""
        self._loader = self._create_loader()

    def close(self) -> None:
        """End all workers. Idempotent."""
        iterators = self._results, getattr(self._loader, "_iterator", None)
        self._results, self._loader = iter(()), None
        for iterator in iterators:
            _end_iterator(iterator)

    def _end_after(self, error: Exception, previous: Any = None) -> EngineError | None:
        """Return the error to raise if a worker died, and end the other workers; else None.

        Args:
            error: What torch's iterator raised.
            previous: The last iterator, if persistent workers died when an iteration started.
        """
        if not self._count:
            return None
        # Compare with None: bool() of torch's iterator asks for its length.
        iterator = self._results if previous is None else previous
        dead = find_dead_workers(iterator, error)
        engine_error = explain_failure(
            error, dead, self._job.loader.multiprocessing_context, self._started
        )
        crashed = [worker for worker in dead if worker.signal in CRASHES]
        if crashed:
            # Between iterations a worker dies of a cancelled batch. Its sample comes again, in a
            # later epoch or attempt, and is found then.
            plans = (
                []
                if previous is not None
                else self._works.plans_of_workers(iterator, {worker.number for worker in crashed})
            )
            engine_error = WorkerCrashed(str(crashed[0]), plans)
        if engine_error is not None:
            end_workers(iterator, dead)
            self.close()
        return engine_error

    def _create_loader(self, samples: Samples | None = None) -> DataLoader[WorkResult]:
        """Create torch's DataLoader; by default of the whole job, with workers that may stay."""
        options = self._job.loader
        worker_options: dict[str, Any] = {}
        if self._count:
            worker_options = {
                "persistent_workers": options.persistent_workers and samples is None,
                "prefetch_factor": options.prefetch,
                "multiprocessing_context": options.multiprocessing_context,
                "worker_init_fn": _init_worker,
            }
        with _ignore_torch_warning():
            return DataLoader(
                samples or create_samples(self._job, cache=self._cache),
                batch_size=None,
                sampler=self._works,
                num_workers=self._count,
                pin_memory=self._device.type == "cuda" and options.pin_memory and samples is None,
                collate_fn=_identity,
                **worker_options,
            )


def _init_worker(number: int) -> None:
    """Make a worker end with its parent: torch's own check takes five seconds, or fails."""
    end_with_parent(partial(remove_shared_memory, [os.getpid()]))


def _end_iterator(iterator: Any) -> None:
    """End the workers of torch's iterator, if it has any. Idempotent."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def count_workers(job: Job) -> int:
    """Return the number of workers; warn if there are more than cores."""
    workers = job.threads if job.loader.workers == "auto" else job.loader.workers
    if workers > cores():
        warnings.warn(
            f"loader.workers={workers}, but this process may use "
            f"{counted(cores(), 'core')}: workers will take turns",
            stacklevel=2,
        )
    return workers


def create_samples(
    job: Job, steps: bool = True, deliver: bool = True, cache: DecodedCache | None = None
) -> Samples:
    """Create the data set of torch's DataLoader.

    Args:
        job: Samples, steps and settings of the loader.
        steps: If false, workers only read each field.
        deliver: If false, workers return only which samples failed.
        cache: The decoded cache, or None.
    """
    phases = [_list_recipes(job, pipeline, steps) for pipeline in job.pipeline.phases]
    decoders = DecoderChain(choose_decoder(job.loader), job.max_pixels)
    return Samples(phases, decoders, deliver, cache)


def choose_decoder(loader: LoaderConfig) -> str:
    """Return the decoder that workers ask first: by default that of the reference."""
    return REFERENCE if loader.decoder == AUTO else loader.decoder


def _list_recipes(job: Job, pipeline: Pipeline, steps: bool) -> list[Recipe]:
    """Return how a pipeline makes each field; without `steps`, workers only read it."""
    channels_last = job.loader.memory_format == "channels_last"
    recipes = []
    for name, spec in pipeline.fields.items():
        form = Recipe(
            name,
            pipeline.entries_on(name) if steps else [],
            None if spec.encoded else spec.layout,
            job.loader.dtype if name == pipeline.main else None,
            channels_last and spec.encoded,
        )
        views = [
            replace(form, name=view, steps=pipeline.entries_on(view))
            for view in (pipeline.views_of(name) if steps else ())
        ]
        recipes.append(replace(form, views=tuple(views)))
    return recipes


@contextmanager
def _ignore_torch_warning() -> Iterator[None]:
    """Ignore torch's warning of more workers than cores: count_workers() has one of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _identity(result: Any) -> Any:
    return result
