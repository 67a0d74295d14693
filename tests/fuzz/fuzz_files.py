"""Fuzzes the functions of gpupipe._kernels that read files: parts, whole files, states and runs.

The files are empty, small, sparse, absent, a folder, a FIFO or a loop of links. Parts begin and end
beyond them. What is read has to be what Python reads, or the number of its error, also while a
thread cuts a file and extends it. Sets of files are read, taken, run and dropped in any order, and
each file has to be there until it is taken, and not after.
"""

import errno
import os
import stat
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from numbered_cases import Report, run_cases
from wrong_arrays import draw_wrong, is_refused

from gpupipe.runtime.installation import find_extension
from helpers.jpeg_kinds import as_data, encode

_kernels, _jpeg = find_extension(), find_extension("_jpeg")
_SIZE, _SPARSE = 50_000, 2**41
_LIMITS = np.iinfo(np.int64)
_NOT_REGULAR = -1
_SIDES = 9, 14


@dataclass
class FileReport(Report):
    """What a run found.

    Attributes:
        read: Parts and files that were read.
    """

    read: int = 0


class Fuzzer:
    """Reads files by number.

    Args:
        folder: An empty folder, in which the files are made.
    """

    def __init__(self, folder: Path) -> None:
        self.report = FileReport()
        self._folder = folder
        self._content = np.random.default_rng(0).bytes(_SIZE)
        self._images = [encode(_SIDES, "420", n) for n in range(4)]
        for size in (0, 1, 4095, 4096, 4097, _SIZE):
            (folder / f"of {size} bytes").write_bytes(self._content[:size])
        for n, image in enumerate(self._images):
            (folder / f"{n}.jpg").write_bytes(image)
        with (folder / "sparse").open("wb") as file:
            file.truncate(_SPARSE)
        (folder / "folder").mkdir()
        os.mkfifo(folder / "fifo")
        (folder / "loop").symlink_to("loop")
        (folder / "link").symlink_to("0.jpg")
        (folder / "bäd \udcff name").write_bytes(b"name")
        os.utime(folder / "1.jpg", ns=(0, 10**19))
        os.utime(folder / "2.jpg", ns=(0, -5))
        others = ["absent", "0.jpg/below", "n" * 300, "folder/", "", "/dev/null"]
        self._names = [*sorted(os.listdir(folder)), *others]

    def try_case(self, number: int) -> None:
        """Read some parts, the states of some files, a file that changes, and a set of files."""
        rng = np.random.default_rng([44, number])
        self._read_parts(number, rng)
        self._read_states(number, rng)
        if number % 8 == 0:
            self._read_changing(number, rng)
        self._use_set(number, rng)
        self._try_wrong(number, rng)

    def _find(self, rng: np.random.Generator) -> str:
        return os.path.join(self._folder, str(rng.choice(self._names)))

    def _read_parts(self, number: int, rng: np.random.Generator) -> None:
        parts: list[Any] = []
        for _ in range(int(rng.integers(0, 9))):
            path, edges = self._find(rng), [0, 0, 1, 4095, 4096, 4097, _SIZE, _SPARSE, 2**62]
            begin = int(rng.choice(edges)) + int(rng.choice([-1, 0, 0, 1, 700]))
            length = int(rng.choice([0, 1, 4096, 4097, _SIZE, 2 * _SIZE, int(rng.integers(_SIZE))]))
            is_whole = not path.endswith("sparse") and rng.integers(3) == 0
            parts.append((path, max(begin, 0), None if is_whole else length))
        expected = [read_part(*part) for part in parts]
        found = _kernels.read_files(parts)
        sums = _kernels.read_files_and_crcs(iter(parts))
        for part, right, data, pair in zip(parts, expected, found, sums, strict=True):
            checked = pair if isinstance(pair, int) else (bytes(pair[0]), pair[1])
            right_pair = right if isinstance(right, int) else (right, zlib.crc32(right))
            if (data if isinstance(data, int) else bytes(data)) != right or checked != right_pair:
                self.report.findings.append(f"case {number}: {part} was read as something else")
            self.report.read += not isinstance(right, int)

    def _read_states(self, number: int, rng: np.random.Generator) -> None:
        paths = [self._find(rng) for _ in range(int(rng.integers(9)))]
        states = [read_state(path) for path in paths]
        if _kernels.stat_files(paths) != states:
            self.report.findings.append(f"case {number}: other states than Python's of {paths}")

    def _read_changing(self, number: int, rng: np.random.Generator) -> None:
        """Read parts of a file that another thread cuts and extends: its bytes, or zeros."""
        path, zeros = self._folder / "of 50000 bytes", bytes(_SIZE)
        parts = [(str(path), int(rng.integers(_SIZE)), None) for _ in range(20)]
        parts += [(path, begin, int(rng.integers(2 * _SIZE))) for path, begin, _ in parts]
        with change_file(path, self._content):
            found = _kernels.read_files_and_crcs(parts)
        for (_, begin, _), pair in zip(parts, found, strict=True):
            data = bytes(pair[0])
            own = np.frombuffer(data, np.uint8)
            right = np.frombuffer((self._content[begin:] + zeros)[: len(data)], np.uint8)
            if ((own != right) & (own != 0)).any() or pair[1] != zlib.crc32(data):
                self.report.findings.append(f"case {number}: bytes that were never in the file")

    def _use_set(self, number: int, rng: np.random.Generator) -> None:
        """Read, take, run and drop files of a set in any order, beside a model of it."""
        names = [n for n in self._names if n not in ("sparse", "/dev/null")]
        names += [f"{n}.jpg" for n in range(4)] * 3 + ["0.jpg\0below"]
        names.append(str(self._folder / "3.jpg"))
        texts = [os.fsencode(name) for name in names]
        offsets = np.cumsum([0, *map(len, texts)])
        rows = rng.integers(len(names), size=rng.integers(1, 12))
        count = len(rows)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        folder = os.fsencode(self._folder) + b"/"
        files = _kernels.open_files(folder, joined, offsets, rows)
        paths = [os.path.join(self._folder, names[row]) for row in rows]
        whole = [read_part(path, 0, None) for path in paths]
        held: list[bytes | None] = [None] * count  # the bytes that the set has of each file
        sizes, expected = np.full((count, 2), -1.0), np.full((count, 2), -1.0)
        order, batch = rng.permutation(count), np.zeros((count, 3, *_SIDES), np.uint8)
        run = self._start_run(files, order, batch)
        for _ in range(int(rng.integers(2, 30))):
            action, n = str(rng.choice(["read", "take", "run", "drop"])), int(rng.integers(count))
            end = int(rng.integers(n, count + 1))
            if action == "read":
                limit = int(rng.choice([-1, _SIDES[0] * _SIDES[1], 0]))
                others = files.read(n, end, sizes, limit, 3)
                for k in range(n, end):
                    data = whole[k]
                    held[k] = None if isinstance(data, int) else data
                    is_taken = data in self._images and limit != 0
                    expected[k] = _SIDES if is_taken else 0
                    self.report.read += held[k] is not None
                if others != int((expected[n:end, 0] == 0).sum()):
                    self.report.findings.append(f"case {number}: {others} are counted as others")
            elif action == "take":
                data, held[n] = held[n], None
                taken = files.take(n)
                if (None if taken is None else bytes(taken)) != data:
                    self.report.findings.append(f"case {number}: other bytes of {paths[n]}")
            elif action == "run":
                batch[:] = 0
                failed = [k for k in range(n, end) if held[order[k]] not in self._images]
                if run.run(n, end) != failed:
                    self.report.findings.append(f"case {number}: other rows than {failed} failed")
                for k in set(range(n, end)) - set(failed):
                    if not np.array_equal(batch[k], decode(held[order[k]])):
                        self.report.findings.append(f"case {number}: other pixels in row {k}")
                    held[order[k]] = None
            else:
                run = self._start_run(files, order, batch)
            if not np.array_equal(sizes, expected):
                self.report.findings.append(f"case {number}: other sizes of {paths}")

    @staticmethod
    def _start_run(files: Any, order: NDArray[np.int64], batch: NDArray[np.uint8]) -> Any:
        sizes = np.array([_SIDES] * len(order))
        output = batch, None, None
        stages = _jpeg.decode_stage(sizes, None, 3), _kernels.deliver_stage(None, output)
        return _kernels.create_run(_kernels.program(stages), [None] * len(order), files, order)

    def _try_wrong(self, number: int, rng: np.random.Generator) -> None:
        path, names = str(self._folder / "0.jpg"), np.frombuffer(b"0.jpg1.jpg", np.uint8)
        wrong_parts = [(path,), [path, 0, None], (path, -1, None), (path, 0, -1), (3, 0, None)]
        wrong_parts += [(path, 0, "1"), (path, 2**63, 1), (path, 0, 2**64), ("a\0b", 0, None), None]
        offsets, rows = np.array([0, 5, 10]), np.array([1, 0])
        arguments: list[Any] = [b"/", names, offsets, rows]
        place, kind = int(rng.integers(1, 4)), int(rng.integers(4))
        if kind == 0:
            arguments[place] = draw_wrong(rng, arguments[place])
        elif kind == 1:
            bad = [[11, 0, 5], [-1, 5, 10], [0, 5, 4], [5, 0, 10], [0, _LIMITS.max, 10], [0, 5, 11]]
            arguments[2] = np.array(bad[int(rng.integers(len(bad)))])
        elif kind == 2:
            arguments[3] = np.array([0, rng.choice([-1, 2, _LIMITS.max, _LIMITS.min])])
        else:
            arguments[0] = [None, "/", 3][int(rng.integers(3))]
        part = wrong_parts[int(rng.integers(len(wrong_parts)))]
        files = _kernels.open_files(b"/", names, offsets, rows)
        stage = _kernels.program(())
        sizes = draw_wrong(rng, np.zeros((2, 2)))
        for function, given in (
            (_kernels.read_files, ([part],)),
            (_kernels.read_files_and_crcs, ([part],)),
            (_kernels.stat_files, ([3.5],)),
            (files.read, (0, 2, sizes, -1, 3)),
            (_kernels.create_run, (stage, [None] * 2, files, draw_wrong(rng, rows))),
            (_kernels.create_run, (stage, [None] * 2, files, np.array([1, 1]))),
        ):
            if not is_refused(function, *given):
                self.report.findings.append(f"case {number}: {given} was not refused")
        errors = (IndexError,) if kind == 2 else (TypeError, ValueError, BufferError)
        if not is_refused(_kernels.open_files, *arguments, errors=errors):
            self.report.findings.append(f"case {number}: {arguments} were not refused")


def read_part(path: str, offset: int, length: int | None) -> bytes | int:
    """Return the bytes of a part of a file, or the number of the error."""
    if "\0" in path:
        return errno.EINVAL
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        assert e.errno is not None
        return e.errno
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            return errno.EISDIR if stat.S_ISDIR(state.st_mode) else _NOT_REGULAR
        size = state.st_size if length is None else length
        parts = []
        while size > 0 and (data := os.pread(file, size, offset)):
            parts.append(data)
            size, offset = size - len(data), offset + len(data)
        return b"".join(parts)
    except OSError as e:
        assert e.errno is not None
        return e.errno
    finally:
        os.close(file)


def read_state(path: str) -> tuple[int, int] | None:
    """Return the size of a file, and the last 64 bits of the ns of its last change."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    changed = state.st_mtime_ns & (2**64 - 1)
    return state.st_size, changed - 2**64 if changed >> 63 else changed


def decode(content: bytes | None) -> NDArray[np.uint8]:
    """Return the pixels of an image, (3, H, W)."""
    assert content is not None
    pixels = np.empty((*_SIDES, 3), np.uint8)
    assert _jpeg.decode(as_data(content), pixels, 0, 0, *_SIDES)
    return pixels.transpose(2, 0, 1)


@contextmanager
def change_file(path: Path, content: bytes) -> Iterator[None]:
    """Cut and extend a file in another thread, and write its content at the end."""
    is_done, has_begun = threading.Event(), threading.Event()

    def change() -> None:
        rng = np.random.default_rng(0)
        while not is_done.is_set():
            os.truncate(path, int(rng.integers(len(content))))
            has_begun.set()
            os.truncate(path, len(content))

    thread = threading.Thread(target=change)
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        path.write_bytes(content)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as folder:
        fuzzer = Fuzzer(Path(folder))
        sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
