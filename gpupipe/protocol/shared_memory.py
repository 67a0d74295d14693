"""Memory for batches: slots that a server shares with a client on the same machine, and buffers
that a client receives into.

Slots and buffers are reused, since allocating fresh memory costs more than the copy into it. The
memory of a batch is reused only after the last tensor that shares it is freed.

A slot is an anonymous file (memfd) without a name in any file system. The kernel frees it when the
last process that maps it ends, so a killed process leaves no memory behind. A seal keeps each side
from shrinking the file while the other side uses it.
"""

import ctypes
import fcntl
import itertools
import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpupipe.protocol.batch_bytes import MalformedMessage, Slot

NAME = "gpupipe"
_SEALS = 0x0001 | 0x0002  # F_SEAL_SEAL, F_SEAL_SHRINK: old headers have no names
_ADD_SEALS = 1033
_PAGE = mmap.PAGESIZE


@dataclass
class _Shared:
    """A slot and its memory as a uint8 tensor, in the server's process."""

    slot: Slot
    tensor: Tensor

    def close(self) -> None:
        os.close(self.slot.fd)


class Slots:
    """Allocates, reuses and closes the slots of one client, in the server's process.

    Args:
        limit: Number of slots that may exist at once.
    """

    _numbers = itertools.count(time.time_ns())

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: list[_Shared] = []
        self._busy: dict[int, _Shared] = {}

    def take(self, size: int) -> tuple[Slot, Tensor] | None:
        """Take a slot of at least `size` bytes for a batch.

        Returns:
            (slot, its memory as a uint8 tensor), or None if the client holds `limit` slots or the
            system has no memory.
        """
        shared = next((s for s in self._free if s.slot.size >= size), None)
        if shared is not None:
            self._free.remove(shared)
        else:
            if len(self._busy) + len(self._free) >= self._limit:
                if not self._free:
                    return None
                self._free.pop().close()  # makes room for a larger slot
            try:
                shared = self._new(size)
            except OSError:
                return None
        self._busy[shared.slot.number] = shared
        return shared.slot, shared.tensor

    def release(self, number: int) -> None:
        """Free the slot `number` for reuse. A number of a slot that is not in use is ignored."""
        shared = self._busy.pop(number, None)
        if shared is not None:
            self._free.append(shared)

    def close(self) -> None:
        """Close all slots; no more can be taken. The client's mappings stay valid."""
        for shared in [*self._free, *self._busy.values()]:
            shared.close()
        self._free, self._busy, self._limit = [], {}, 0

    def _new(self, size: int) -> _Shared:
        size = max(_PAGE, -(-size // _PAGE) * _PAGE)
        number = next(self._numbers)
        fd = os.memfd_create(_name(number), 0x0001 | 0x0002)  # MFD_CLOEXEC | MFD_ALLOW_SEALING
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
            tensor = torch.from_numpy(np.frombuffer(mmap.mmap(fd, size), np.uint8))
        except BaseException:
            os.close(fd)
            raise
        return _Shared(Slot(number, fd, size), tensor)


class Mapped:
    """Maps the slots of a server into the client's process.

    Args:
        pid: Process id of the server.
        gpu: Index of the GPU for which to page-lock the memory; None to leave it pageable.

    Attributes:
        pid: Process id of the server.
        freed: Numbers of the slots whose tensors are all freed, which the server may reuse.
    """

    def __init__(self, pid: int, gpu: int | None = None) -> None:
        self.pid, self._gpu = pid, gpu
        self._maps: dict[int, np.ndarray[Any, Any]] = {}
        self.freed: deque[int] = deque()

    def tensor(self, slot: Slot, size: int) -> Tensor:
        """Return the first `size` bytes of a slot as a uint8 tensor, mapping the slot if necessary.

        Raises MalformedMessage if the slot cannot be opened or has another size.
        """
        if slot.number not in self._maps:
            self._maps[slot.number] = self._map(slot)
        return _lend(self._maps[slot.number][:size], self.freed.append, slot.number)

    def _map(self, slot: Slot) -> np.ndarray[Any, Any]:
        path = f"/proc/{self.pid}/fd/{slot.fd}"
        try:
            self._check_name(Path(path), slot)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            raise MalformedMessage(
                f"the server's slot {path} cannot be opened: {e.strerror}"
            ) from None
        try:
            self._check_name(Path(f"/proc/self/fd/{fd}"), slot)
            if os.fstat(fd).st_size != slot.size:
                raise MalformedMessage(
                    f"{path} has {os.fstat(fd).st_size} bytes, and {slot.size} were announced"
                )
            memory = np.frombuffer(mmap.mmap(fd, slot.size), np.uint8)
        finally:
            os.close(fd)
        if self._gpu is not None:
            _pin(memory, self._gpu)
        return memory

    @staticmethod
    def _check_name(path: Path, slot: Slot) -> None:
        """Raise MalformedMessage if `path`, a link in /proc/PID/fd, does not name the slot's memfd.

        If the server has closed the slot, the descriptor number may belong to another file.
        """
        if str(path.readlink()) != f"/memfd:{_name(slot.number)} (deleted)":
            raise MalformedMessage(f"{path} is not slot {slot.number}")


class Buffers:
    """Allocates and reuses a client's memory for batches that come over a socket.

    Args:
        num_kept: Number of free buffers to keep for reuse.
        gpu: Index of the GPU for which to page-lock the memory; None to leave it pageable.
    """

    def __init__(self, num_kept: int, gpu: int | None = None) -> None:
        self._gpu = gpu
        self._free: deque[np.ndarray[Any, Any]] = deque(maxlen=num_kept)

    def take(self, size: int) -> Tensor:
        """Return a uint8 tensor of `size` bytes, in a free buffer of that size if there is one."""
        for _ in range(len(self._free)):
            base = self._free.popleft()
            if len(base) == size:
                return _lend(base[:], self._free.append, base)
            self._free.append(base)
        with nullcontext() if self._gpu is None else torch.cuda.device(self._gpu):
            base = torch.empty(size, dtype=torch.uint8, pin_memory=self._gpu is not None).numpy()
        return _lend(base[:], self._free.append, base)


def _pin(memory: np.ndarray[Any, Any], gpu: int) -> None:
    """Page-lock `memory` for as long as it is mapped, so that copies to `gpu` run at full speed.

    CUDA page-locks for the current device, and creates a context there. If CUDA refuses, the memory
    stays pageable: copies are slower, with the same result.
    """
    cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
    last_error = cuda_last_error()
    if last_error is None:
        return
    address = memory.ctypes.data
    with torch.cuda.device(gpu):
        if cuda.cudaHostRegister(address, memory.nbytes, 0) == cuda.cudaError.success:
            weakref.finalize(memory, _unpin, cuda, last_error, address, gpu).atexit = False
        else:
            last_error()


def _unpin(cuda: Any, last_error: Callable[[], int], address: int, gpu: int) -> None:
    with torch.cuda.device(gpu):
        if cuda.cudaHostUnregister(address) != cuda.cudaError.success:
            last_error()


@cache
def cuda_last_error() -> Callable[[], int] | None:
    """Return cudaGetLastError of torch's CUDA runtime, or None if torch's library hides it.

    cudaGetLastError returns and clears the error of the last failed call of this thread. If nobody
    calls it, torch raises that error after the next kernel launch. torch.cuda.cudart() does not
    offer the function.
    """
    return getattr(ctypes.CDLL(torch._C.__file__), "cudaGetLastError", None)


def _name(number: int) -> str:
    """Return the name of a slot's memfd."""
    return f"{NAME} {number}"


def _lend(view: np.ndarray[Any, Any], on_free: Callable[[Any], None], argument: Any) -> Tensor:
    """Return `view` as a tensor. Call on_free(argument) after the last tensor over it is freed."""
    weakref.finalize(view, on_free, argument).atexit = False
    return torch.from_numpy(view)
