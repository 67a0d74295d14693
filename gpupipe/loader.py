"""The Loader, which delivers epochs of batches.

A Loader joins three parts: a sampler decides the order, an engine makes the batches, and a life
cycle tracks which batches were delivered, for state_dict(). load() is in gpupipe/opening.py. Go on
reading in gpupipe/loading/life_cycle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from gpupipe import config as configs
from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.config import Config, locate_errors
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch
from gpupipe.errors import UsageError, counted, warn
from gpupipe.loading.assembly import LoaderParts, assemble, connect, count_threads, resolve
from gpupipe.loading.batch_format import BatchFormat
from gpupipe.loading.ignored_settings import log_ignored_settings
from gpupipe.loading.life_cycle import LifeCycle
from gpupipe.loading.run_state import RunState
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.progress import Progress, ignore_progress
from gpupipe.sampling.sampler import Plan

if TYPE_CHECKING:
    from torch import Tensor


def open_loader(config: Config, progress: Progress = ignore_progress) -> Loader:
    """Create a Loader as load() does, but issue no warning about the data.

    For callers that print `index.note` themselves.
    """
    loader = create_loader(config, None, progress)
    log_ignored_settings(config, loader.config.loader, loader.engine)
    return loader


def create_loader(
    config: Config, index: Index | None = None, progress: Progress = ignore_progress
) -> Loader:
    """Create a loader as load() does, but issue no warning about the data, and log no settings.

    Raises what load() raises.

    Args:
        config: The config.
        index: The samples, if the index was built already.
        progress: Called with (action, done, total) while the samples are indexed or fetched.
    """
    resolved = resolve(config)
    if not resolved.reads_data:
        return Loader(connect(resolved.engine, config.loader, config))
    samples = configs.build_index(config, progress) if index is None else index
    return Loader(assemble(resolved, samples))


def warn_about_data(loader: Loader) -> Loader:
    """Return the loader; if its index has a warning, issue it."""
    if loader.index.warning:
        warn(loader.index.warning, loader.index.warning_category)
    return loader


@runtime_checkable
class MixesBatches(Protocol):
    """An engine that can run the batch stage on its own threads, if it delivers to the CPU."""

    def mixed_batches(
        self, plans: Iterator[Plan], mix: Callable[[Plan, Batch, BatchMemory], Batch]
    ) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield each plan with its mixed batch; otherwise as `BatchStream.batches`.

        Args:
            plans: The plans of one or more epochs.
            mix: Returns the mixed batch of a plan, in memory that the last argument allocates.
                Several threads may call it at once. Its errors are raised in the batch's place.
        """


@runtime_checkable
class PadsImages(Protocol):
    """An engine that can write images of unequal size into one padded tensor."""

    def padded_batches(
        self, plans: Iterator[Plan], pad_to: int
    ) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield each plan with its batch; otherwise as `BatchStream.batches`.

        A field of images may be a tensor such as "image" (B, C, H, W), with zeros beyond the end of
        each image, in place of "image.values". The batch has "image.shapes" in any case.

        Args:
            plans: The plans of one or more epochs.
            pad_to: H and W are the smallest multiples of this number that hold all images.
        """


class Loader:
    """Delivers epochs of batches.

    Each `iter()` delivers one epoch: the next one or, after load_state_dict(), the rest of the
    state's epoch. The epoch is chosen when its first batch is requested, so
    `sampler.set_epoch()` may follow `iter()`. Only the newest iterator of a loader can be used.
    After the first epoch `iter()` is cheap: the engine prepares the next epoch while this one ends.

    A batch is a dict: the fields of the pipeline, such as "image" (B, C, H, W), further values of
    the data set (B, ...), and "label", int64 (B,), if each sample has a class. All tensors are on
    the loader's device. With `format: tuple` a batch is (first field, label). With `ids: true` the
    dict also has "id", int64 (B,): the rows of the samples in the index.

    Data with boxes or points also has a gpupipe.Ragged for each field of them, such as "boxes" and
    "labels"; "orig_size", int64 (B, 2), [height, width] of the stored images; and, unless a step
    such as random_perspective moves pixels, "to_original", float64 (B, 3, 3): the maps of [x, y, 1]
    in the batch's images to the stored ones. A view has its own, such as "global_0_boxes".

    If the config has steps under `batch:`, such as mixup, the loader runs them on each batch. The
    label is then soft: float32 (B, mixer.num_classes). The random choices of these steps depend on
    which samples share a batch.

    Attributes:
        config: The configuration, with the rank and world size that the loader found.
        index: The table of samples; `len(loader.index)` is the size of the data set.
        sampler: The order of the samples; `sampler.set_epoch(n)` chooses the next epoch.
        engine: Makes the batches.
        mixer: Runs the steps under `batch:` on the engine's batches.
        threads: CPU threads of the engine.
        as_tuple: Whether a batch is a tuple.
        waited: Seconds that iterations have waited for batches so far.

    Examples:
        >>> with gpupipe.load("lfw") as loader:
        ...     for epoch in range(10):
        ...         for batch in loader:
        ...             train(batch["image"], batch["label"])
    """

    batch_sampler = None
    """Always None: Lightning reads this attribute of any loader that has a `sampler`."""

    def __init__(self, parts: LoaderParts) -> None:
        """Create a loader; users call load() instead.

        Args:
            parts: The config, the samples, their order and the engine.
        """
        self.config, self.index = parts.config, parts.index
        self.sampler, self.engine = parts.sampler, parts.engine
        config = parts.config
        self.threads = count_threads(parts.config.loader)
        self.as_tuple = config.loader.format == "tuple" and config.loader.collate is None
        with locate_errors(config, "loader"):
            self._format = BatchFormat(config, parts.index.classes)
        self._population = parts.population
        self._locate_errors = partial(locate_errors, config, "data")
        engine, stage, index, start_run = parts.engine, config.batch, parts.index, None
        can_mix = bool(stage.entries) and stage.is_thread_safe and engine.device == "cpu"
        self._gets_mixed = can_mix and isinstance(engine, MixesBatches)
        on_engine = index if self._gets_mixed and index.has_labels else None
        self.mixer = BatchMixer(stage, config.loader.seed, index.classes, on_engine)
        if self._gets_mixed and isinstance(engine, MixesBatches):
            start_run = partial(engine.mixed_batches, mix=self.mixer.mix_planned)
        if (pad_to := self._format.pad_to) is not None and isinstance(engine, PadsImages):
            start_run = partial(engine.padded_batches, pad_to=pad_to)
        self._life_cycle = LifeCycle(
            engine, parts.sampler, parts.population, start_run, self._locate_errors
        )
        self._run_state = RunState(parts)

    @property
    def waited(self) -> float:
        """Seconds that iterations have waited for batches so far."""
        return self._life_cycle.waited

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch on this rank.

        If epochs differ in size, it is the epoch under way, and otherwise the next one.
        """
        with self._locate_errors():
            return self._life_cycle.count_batches()

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch. Older iterators of this loader raise GpupipeError from now on.

        Raises:
            GpupipeError: If the loader is closed, or this process was forked from the loader's.
        """
        return self._life_cycle.iterate(self._format_batch)

    def _format_batch(self, plan: Plan, batch: dict[str, Tensor]) -> Any:
        mixed = batch if self._gets_mixed else self.mixer.mix_planned(plan, batch)
        return self._format(mixed, self.as_tuple)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last, as plain JSON.

        Prefetched batches do not count.

        Returns:
            A dict of plain values for load_state_dict(). It holds the fingerprints of data and
            pipeline, seed and shuffle; repeats, weights, epoch_size and subset if they are not at
            their defaults; epoch, and position (samples of the epoch delivered over all ranks);
            step (batches so far on each rank); content (sizes and hashes of some samples, found at
            the first call); skipped (rows that on_error skipped on this rank); and history (the
            step and settings of each resume with another batch size or number of ranks).
        """
        return self._run_state.make(self._life_cycle.position, self._life_cycle.delivered)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continue where a state was taken: the next iteration delivers the rest of that epoch.

        The batch size and the number of ranks may differ from those of the state.

        Args:
            state: The dict from state_dict() of a loader.
            strict: If true, the state must belong to the same data, pipeline and order: seed,
                shuffle, repeats, weights, epoch_size and subset. If false, the epoch continues at
                the same position in this loader's own order.

        Raises:
            StateError: If `state` does not fit this loader, or is not a state.
        """
        self._run_state.check(state, self._life_cycle.position, strict)
        self._life_cycle.stop()
        self.sampler.load_state(dict(state), strict)
        self._run_state.resume(state, self._life_cycle.position, self._life_cycle.delivered)

    def close(self) -> None:
        """End all iterations, and free threads, processes and memory. Idempotent.

        If another thread waits for a batch, this waits until it has that batch. After close(),
        `iter()` raises GpupipeError, and so does `next()` of older iterators. In a process that was
        forked from the loader's, this does nothing: threads and memory are the parent's.
        """
        if self._life_cycle.is_forked:
            return
        self._life_cycle.close()
        self.engine.close()
        for entry in self.config.pipeline.entries:
            entry.step.release()
        self.mixer.release()
        self.config.source.release()
        if self._population is not None:
            self._population.close()

    def __repr__(self) -> str:
        index, sampler, engine = self.index, self.sampler, self.engine
        pipeline = self.config.pipeline
        # The size of an epoch of a growing source is not known before the epoch starts.
        grows = sampler.population is not None
        ranks = f", rank {sampler.rank} of {sampler.world_size}" if sampler.world_size > 1 else ""
        batches = f"up to {counted(sampler.batch_size, 'sample')}"
        state = self._life_cycle.position
        size = "" if grows else f" of {sampler.epoch_size:,}"
        stands = f"epoch {state['epoch']}, {state['position']:,}{size}"
        steps = ", ".join(dict.fromkeys(e.key for e in pipeline.entries))
        mixing = ", ".join(e.key for e in self.mixer.stage.entries)
        facts = {
            "batches": f"of {batches}" if grows else f"{len(self):,} an epoch, of {batches}{ranks}",
            "pipeline": f"{pipeline.name} ({steps})",
            **({"mixed by": mixing} if mixing else {}),
            "engine": f"{engine.name} on {engine.device}, {engine.traits.parallelism_with_unit}",
            "position": f"{stands} samples delivered",
        }
        closed = " (closed)" if self._life_cycle.is_closed else ""
        head = f"<gpupipe.Loader {self.config.name}: {index.summary}{closed}>"
        return "\n".join([head, *(f"  {name + ':':11}{fact}" for name, fact in facts.items())])

    def __reduce__(self) -> NoReturn:
        """Raise UsageError: a loader cannot be pickled or copied."""
        raise UsageError(
            "a Loader cannot be pickled or copied, since it holds threads, processes and memory: "
            "pass its config and its state_dict() on, and load() and load_state_dict() there"
        )

    def __getitem__(self, item: object) -> NoReturn:
        """Raise UsageError: a loader has batches, no single samples."""
        raise UsageError(
            "a Loader is no data set, and has no samples to ask for one by one: it makes batches "
            "itself. Iterate over it in the place of DataLoader(loader): for batch in loader"
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
