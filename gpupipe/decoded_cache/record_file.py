"""A file of records that several processes read and fill at once: a hash table on disk.

A record consists of the pixels of one sample, and of a slot that locates the pixels. `layout`
defines the bytes of the file.

    create_file(path, CacheHeader(...))
    file = RecordFile(path, samples=1_281_167)
    file.add(key, pixels, size)         # another process may do this at the same moment
    record = file.find(key)             # None if it is not there, or its pixels are damaged
    pixels = file.pixels(record)        # (H, W, C) of uint8, not copied

Invariants:

- Records are added, and never moved or removed. If a record's pixels are damaged, they are written
  again at a new offset, and the slot is written in place.
- `add` reserves bytes, writes the pixels, then writes the slot. So when a process finds a slot, all
  its pixels are there. If a process is killed in between, only the reserved bytes are lost.
- `add` locks the lock file to reserve bytes, and again to write a slot. Readers need no lock.
- Slots and pixels have checksums. Damaged records count as absent. A damaged slot is not reused.
- All writes use pwrite, which raises OSError if the disk is full. A write to mapped memory would
  kill the process in this case.
- Pixels are read through a private map, so no process can change the pixels of another.
"""

import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoded_cache.cache_file import lock_path, open_own, read_state, unpack_header
from gpupipe.decoded_cache.layout import (
    ALIGNMENT,
    COUNTERS_OFFSET,
    COUNTERS_SIZE,
    RECORD_DTYPE,
    SLOT_SIZE,
    SLOTS_OFFSET,
    UNDECIDED,
    Counters,
    DamagedCacheError,
    Record,
)
from gpupipe.runtime.file_locks import hold_lock, share_lock, unlock
from gpupipe.runtime.files import write_at

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""With this flag, Linux makes a writable map of a file that is larger than memory."""
_EMPTY = bytes(SLOT_SIZE)
_MAX_USED = 0.8
"""Maximum share of used slots: a search in a fuller table takes long."""
_RECORDS_TO_DECIDE = 64
_SAFETY = 0.98
"""The share of the space for pixels to fill. The rest is a reserve: sample sizes are estimates."""
_UNKNOWN, _GOOD, _BAD = 0, 1, 2


class RecordFile:
    """An open cache file, which finds and adds records.

    Threads and forked processes may use it at once.

    Args:
        path: The file.
        samples: How many records the file would have if it kept all samples. If these would not
            fit, the file keeps a share of the samples.

    Attributes:
        header: The header of the file.

    Raises:
        OSError: The file cannot be opened or mapped.
        DamagedCacheError: The file is no cache file, or is damaged.
    """

    def __init__(self, path: Path, samples: int) -> None:
        self._samples = samples
        self._lock_path = lock_path(path)
        self._fd = open_own(path)
        self.header = unpack_header(self._fd)
        self._seen = read_state(self._fd)
        # Tells other processes that the file is in use. Forked children share the lock.
        share_lock(self._fd)
        self._map = mmap.mmap(
            self._fd,
            self.header.size,
            flags=mmap.MAP_PRIVATE | _NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
        self._bytes = np.frombuffer(self._map, np.uint8)
        # Which records have pixels that match their checksum. Forked children share it.
        self._checked = mmap.mmap(-1, self.header.slots)
        self._is_full = False
        self._count_all_records()

    def check_unchanged(self) -> None:
        """Check that no other program changed the file. Call it before each batch.

        If the file was written to, and not by `add`, the checksums of all records are checked again
        on use. A file that is truncated after this check, and read before it is looked up again,
        ends the process with SIGBUS: no program can read pages that do not exist.

        Raises:
            DamagedCacheError: The file has another size than its header says.
        """
        if self._fd < 0:
            return
        state = read_state(self._fd)
        if state == self._seen:
            return
        if state.size != self.header.size:
            raise DamagedCacheError(
                f"another program made it {state.size:,} bytes long, in place of "
                f"{self.header.size:,}, while it was in use"
            )
        if state.counters == self._seen.counters or state.blocks < self._seen.blocks:
            self._checked[:] = bytes(self.header.slots)
        self._seen = state

    def find(self, key: bytes) -> Record | None:
        """Return the record of a key; None if there is none, or if its pixels are damaged."""
        for number, record in self._iter_slots(key):
            if record is not None and record.key == key:
                return record if self._is_intact(number, record) else None
        return None

    def pixels(self, record: Record) -> NDArray[np.uint8]:
        """Return the pixels of a record, H x W x C, without a copy."""
        count = int(np.prod(record.shape))
        return self._bytes[record.offset : record.offset + count].reshape(record.shape)

    def add(self, key: bytes, pixels: NDArray[np.uint8], size: tuple[int, int]) -> bool:
        """Add a record, or replace one whose pixels are damaged.

        Args:
            key: The hash that identifies the sample, 16 bytes.
            pixels: The pixels, H x W x C, C-contiguous.
            size: [height, width] of the whole image, for Record.size.

        Returns:
            True if the record was added. False if the file or disk is full, if the sample is not in
            the share of samples that the file keeps, or if the key has an undamaged record already.
        """
        if self._is_full or (offset := self._reserve(key, pixels.nbytes)) is None:
            return False
        height, width, channels = pixels.shape
        record = Record(key, offset, (height, width, channels), size, zlib.crc32(pixels.data))
        try:
            self._write(pixels.reshape(-1), offset)
            with hold_lock(self._lock_path):
                self._commit(record)
        except OSError:  # the disk or the memory is full: what is there stays
            self._is_full = True
            return False
        return True

    def read_counters(self) -> Counters:
        """Return how full the file is. Raises DamagedCacheError if the counters are damaged."""
        return Counters.unpack(os.pread(self._fd, COUNTERS_SIZE, COUNTERS_OFFSET))

    def close(self) -> None:
        """Stop adding records. The file stays mapped while arrays of pixels exist. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            unlock(fd)  # the map holds a copy of the descriptor
            os.close(fd)
        self._is_full = True

    def _count_all_records(self) -> None:
        """Correct the counters if they miss some used slots, as after a power failure."""
        slots = self._bytes[SLOTS_OFFSET : SLOTS_OFFSET + self.header.slots * SLOT_SIZE]
        table = slots.view(RECORD_DTYPE)
        ends = table["offset"] + table["shape"].astype(np.uint64).prod(axis=1)
        with hold_lock(self._lock_path):
            counters = self.read_counters()
            later = np.flatnonzero(ends > counters.end)
            if not len(later):
                return
            for number in later.tolist():
                with suppress(DamagedCacheError):
                    record = Record.unpack(table[number].tobytes())
                    end = min(record.offset + int(np.prod(record.shape)), self.header.size)
                    counters = replace(counters, end=max(counters.end, end))
            self._write_counters(replace(counters, records=int(np.count_nonzero(table["offset"]))))

    def _iter_slots(self, key: bytes) -> Iterator[tuple[int, Record | None]]:
        """Yield each slot that may hold a key: its number, and its record or None if damaged."""
        slots = self.header.slots
        first = int.from_bytes(key[:8], "little") % slots
        for step in range(slots):
            number = (first + step) % slots
            at = SLOTS_OFFSET + number * SLOT_SIZE
            if (data := self._map[at : at + SLOT_SIZE]) == _EMPTY:
                return
            try:
                record = Record.unpack(data)
            except DamagedCacheError:  # or another process is writing it
                yield number, None
            else:
                yield number, record

    def _is_intact(self, number: int, record: Record) -> bool:
        """Return whether a record's pixels match their checksum, which is computed only once."""
        if self._checked[number] == _UNKNOWN:
            pixels = self._bytes[record.offset :][: int(np.prod(record.shape))]
            self._checked[number] = _GOOD if zlib.crc32(pixels.data) == record.checksum else _BAD
        return self._checked[number] == _GOOD

    def _reserve(self, key: bytes, count: int) -> int | None:
        """Reserve `count` bytes for the pixels of a sample, and return their offset.

        Return None if there is no room, if the counters are damaged, if the file has the sample
        already, or if the sample is not in the share of samples that the file keeps.
        """
        with hold_lock(self._lock_path):
            try:
                counters = self._decide_share(self.read_counters())
            except DamagedCacheError:
                self._is_full = True
                return None
            begin = -(-counters.end // ALIGNMENT) * ALIGNMENT
            max_records = int(_MAX_USED * self.header.slots)
            if counters.records >= max_records or begin + count > self.header.size:
                return None
            if counters.share != UNDECIDED and not _is_chosen(key, counters.share):
                return None
            if self.find(key) is not None:
                return None
            self._write_counters(replace(counters, end=begin + count))
            return begin

    def _decide_share(self, counters: Counters) -> Counters:
        """Decide which share of the samples the cache keeps, from the mean size of its records.

        Returns the counters. Their share stays undecided below 64 records.
        """
        if counters.share != UNDECIDED or counters.records < _RECORDS_TO_DECIDE:
            return counters
        mean = (counters.end - self.header.data_offset) / counters.records
        room = self.header.size - self.header.data_offset
        needed = mean * self._samples
        decided = replace(counters, share=1.0 if needed <= room else _SAFETY * room / needed)
        self._write_counters(decided)
        return decided

    def _commit(self, record: Record) -> None:
        """Write the slot of a record. The caller must hold the lock of the file."""
        number, is_new = self._find_slot(record.key)
        if is_new:
            counters = self.read_counters()
            self._write_counters(replace(counters, records=counters.records + 1))
        self._write(np.frombuffer(record.pack(), np.uint8), SLOTS_OFFSET + number * SLOT_SIZE)
        self._checked[number] = _GOOD

    def _find_slot(self, key: bytes) -> tuple[int, bool]:
        """Return the number of the slot to use for a key, and whether that slot is empty.

        A damaged slot is not reused or cleared, because a search ends at the first empty slot.
        """
        last = int.from_bytes(key[:8], "little") % self.header.slots - 1
        for number, record in self._iter_slots(key):
            if record is not None and record.key == key:
                return number, False
            last = number
        return (last + 1) % self.header.slots, True

    def _write_counters(self, counters: Counters) -> None:
        os.pwrite(self._fd, counters.pack(), COUNTERS_OFFSET)

    def _write(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write all of `data` at byte `offset` of the file. Raises OSError if the disk is full."""
        write_at(self._fd, offset, data.data)


def _is_chosen(key: bytes, share: float) -> bool:
    """Return whether a key belongs to the share of all samples that a file keeps."""
    return int.from_bytes(key[8:], "little") < share * 2.0**64
