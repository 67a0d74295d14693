"""What the workers of a trainer share: the job, its hash, and how many they are."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Job
from gpupipe.engines.batch_finisher import PipelineTail, find_larger_output, find_tail
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.engines.ray.pool_worker import SharedJob


def split_job(job: Job) -> tuple[Job, PipelineTail]:
    """Return the job of the workers, and the steps that are left to the trainer.

    With `ray.ship: uint8` those are the last steps that can run on uint8 batches.
    """
    options = job.loader
    numbers = find_tail(job.pipeline) if options.ray.ship == "uint8" else ()
    shorter = job.pipeline.without_entries(numbers)
    if find_larger_output(shorter) is not None:
        numbers, shorter = (), job.pipeline
    threads = options.ray.cpus
    settings: dict[str, Any] = {"dtype": None if numbers else options.dtype, "threads": threads}
    # For the DataLoader inside a worker. A fork would copy the locks of Ray's threads.
    settings |= {"workers": threads if threads > 1 else 0}
    if options.multiprocessing_context in (None, "fork"):
        settings |= {"multiprocessing_context": "forkserver"}
    worker_job = replace(
        job, pipeline=shorter, loader=options.model_copy(update=settings), threads=threads
    )
    return worker_job, PipelineTail(job.pipeline, numbers, options.dtype if numbers else None)


def share_job(job: Job) -> SharedJob:
    """Put a job into the object store."""
    text = f"{job.index.fingerprint} {job.pipeline.fingerprint} {job.loader.model_dump_json()}"
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    # DALI takes twice `prefetch` plans ahead. One more waits, and one is on its way.
    depth = 2 * job.loader.prefetch + 2
    return SharedJob(key, ray.put(job), list_visible_paths(job.index), depth)


def list_visible_paths(index: Index) -> tuple[str, ...]:
    """Return files and folders of the data that this process sees: each root, and a first file."""
    paths = []
    for column in index.columns.values():
        root = getattr(column, "root", "")
        span = column.span(0) if len(column) else None
        paths += [root] if root else []
        paths += [span.path] if span is not None else []
    return tuple(path for path in dict.fromkeys(paths) if Path(path).exists())


def count_workers(options: LoaderConfig, cluster: Cluster) -> int:
    """Return how many workers this trainer starts with."""
    workers = options.ray.workers
    if isinstance(workers, tuple):
        return workers[0]
    if workers != "auto":
        return workers
    share = cluster.total_cpus() / options.ray.cpus / options.shard.world_size
    free = cluster.free_cpus() / options.ray.cpus
    return max(1, int(min(free, share)))
