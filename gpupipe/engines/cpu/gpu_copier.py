"""Copies finished batches to a GPU on a separate CUDA stream, while threads run later batches.

The thread that finishes a batch queues its copies from page-locked memory, and does not wait. The
consumer's stream waits for the CUDA event after the copies. The memory of a batch returns to the
pool only after that event. Otherwise a later batch could overwrite it while the GPU still reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import torch

from gpupipe.engines.base import Batch
from gpupipe.runtime.memory import on_stream, record_stream, to_device


class SourcesInUse:
    """Keeps tensors alive while a stream still copies from them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: deque[tuple[torch.Event, Sequence[torch.Tensor]]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, done: torch.Event, tensors: Sequence[torch.Tensor]) -> None:
        """Keep `tensors` until the event `done`, and drop all tensors whose copies have ended."""
        with self._lock:
            self._entries.append((done, tensors))
        self.drop_copied()

    def drop_copied(self) -> None:
        """Drop the tensors whose copies have ended, the oldest first."""
        with self._lock:
            while self._entries and self._entries[0][0].query():
                self._entries.popleft()

    def clear(self) -> None:
        """Drop all tensors."""
        with self._lock:
            self._entries.clear()


@dataclass(frozen=True)
class CopiedFields:
    """Fields of a batch whose copies to the GPU are queued.

    Attributes:
        tensors: The fields on the GPU.
        done: The event after their copies.
    """

    tensors: Batch
    done: torch.Event


class GpuCopier:
    """Copies batches to a GPU.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: torch.device) -> None:
        self._gpu = gpu
        self._stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._sources = SourcesInUse()

    def start(self, fields: Mapping[str, torch.Tensor]) -> CopiedFields:
        """Queue the copies of a batch. Any thread may call it."""
        with on_stream(self._stream):
            tensors = {name: to_device(tensor, self._gpu) for name, tensor in fields.items()}
            done = self._stream.record_event()
        self._sources.keep(done, list(fields.values()))
        return CopiedFields(tensors, done)

    def hand_over(self, copied: CopiedFields) -> Batch:
        """Return the fields on the GPU. The caller's current stream waits for their copies."""
        stream = torch.cuda.current_stream(self._gpu)
        stream.wait_event(copied.done)
        record_stream(copied.tensors, stream)
        self._sources.drop_copied()
        return copied.tensors

    def close(self) -> bool:
        """Wait for the queued copies, and drop the tensors that they read.

        Returns:
            False if the GPU failed. Then the page-locked memory that it used must never be freed:
            torch would record a CUDA event for it, whose error ends the process.
        """
        try:
            self._stream.synchronize()
        except RuntimeError:  # the error of an earlier call, which close() must not hide
            return False
        self._sources.clear()
        return True
