"""The file of records: what is added is found, in every process; what is damaged is not."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gpupipe.decoded_cache.cache_file import is_in_use, read_header
from gpupipe.decoded_cache.layout import COUNTERS_OFFSET, SLOTS_OFFSET, DamagedCacheError
from gpupipe.decoded_cache.record_file import RecordFile
from helpers.decoded_caches import key, new_file, picture

FILL = """
import sys
from pathlib import Path
import numpy as np
from gpupipe.decoded_cache.record_file import RecordFile
table = RecordFile(Path(sys.argv[1]), 10)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    key = np.random.default_rng(number).bytes(16)
    picture = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
    table.add(key, picture, (1, 2))
    print(number, flush=True)
"""


def fill(path: Path, first: int, end: int) -> subprocess.Popen[str]:
    """A process that adds records."""
    command = [sys.executable, "-c", FILL, str(path), str(first), str(end)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def count_found(table: RecordFile, count: int) -> int:
    """How many records are found; each of them must have its own pixels."""
    found = 0
    for number in range(count):
        record = table.find(key(number))
        if record is not None:
            assert np.array_equal(table.pixels(record), picture(number))
            found += 1
    return found


def test_what_is_added_is_found(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file")
    for number in range(100):
        assert table.find(key(number)) is None
        assert table.add(key(number), picture(number), (number, 7))
    assert count_found(table, 100) == 100
    record = table.find(key(40))
    assert record is not None
    assert record.size == (40, 7)
    assert count_found(RecordFile(tmp_path / "file", 10), 100) == 100


def test_a_record_is_added_once(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file")
    table.add(key(1), picture(1), (1, 1))
    before = table.read_counters()
    table.add(key(1), picture(1), (1, 1))
    assert table.read_counters() == before


def test_two_processes_fill_a_file_at_once(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", 4_000_000, 1024)
    processes = [fill(tmp_path / "file", 0, 200), fill(tmp_path / "file", 100, 300)]
    assert [p.wait(100) for p in processes if p.communicate()] == [0, 0]
    assert count_found(table, 300) == 300
    assert table.read_counters().records == 300


def test_threads_fill_a_file_at_once(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", 4_000_000, 1024)

    def work() -> None:
        for number in range(100):
            table.add(key(number), picture(number), (1, 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count_found(table, 100) == 100
    assert table.read_counters().records == 100


def test_a_process_that_is_killed_leaves_whole_records(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", 40_000_000, 8192)
    told = 0
    for _ in range(2):
        process = fill(tmp_path / "file", told, 5000)
        assert process.stdout is not None
        for _ in range(20):
            told = int(process.stdout.readline()) + 1
        process.send_signal(signal.SIGKILL)
        assert process.wait(100) == -signal.SIGKILL
        process.stdout.close()
        assert count_found(table, told) == told
    assert table.add(key(9999), picture(9999), (1, 1))


def test_a_full_file_takes_no_more_and_stays_within_its_size(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", 50_000, 256, samples=1)
    added = [table.add(key(n), picture(n), (1, 1)) for n in range(100)]
    assert 0 < sum(added) == count_found(table, 100) < 100
    assert (tmp_path / "file").stat().st_size == 50_000


def test_a_file_that_is_too_small_keeps_a_share_that_is_chosen_once(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", 1_000_000, 1024, samples=1000)
    kept = {n for n in range(1000) if table.add(key(n), picture(n), (1, 1))}
    share = table.read_counters().share
    assert 0.4 < share < 0.6
    late = {n for n in kept if n >= 800}
    assert 60 < len(late) < 140, "a late sample has the chance of an early one"
    assert not any(table.add(key(n), picture(n), (1, 1)) for n in set(range(1000)) - kept)


def test_a_table_that_is_nearly_full_takes_no_more(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file", slots=10)
    assert sum(table.add(key(n), picture(n), (1, 1)) for n in range(20)) == 8
    assert count_found(table, 20) == 8


def test_damaged_pixels_are_not_found_and_replaced(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file")
    table.add(key(1), picture(1), (1, 1))
    record = table.find(key(1))
    assert record is not None
    overwrite(tmp_path / "file", record.offset + 100, b"damaged")
    other = RecordFile(tmp_path / "file", 10)
    assert other.find(key(1)) is None
    assert other.add(key(1), picture(1), (1, 1))
    assert count_found(other, 2) == 1
    assert other.read_counters().records == 1
    assert count_found(RecordFile(tmp_path / "file", 10), 2) == 1


@pytest.mark.parametrize("damage", [b"\0" * 8, b"\xff" * 64])
def test_a_damaged_slot_is_no_record(tmp_path: Path, damage: bytes) -> None:
    table = new_file(tmp_path / "file", slots=64)
    for number in range(40):
        table.add(key(number), picture(number), (1, 1))
    slot = int.from_bytes(key(3)[:8], "little") % 64
    overwrite(tmp_path / "file", SLOTS_OFFSET + 64 * slot, damage)
    other = RecordFile(tmp_path / "file", 10)
    assert count_found(other, 40) >= 38
    for number in range(40):
        other.add(key(number), picture(number), (1, 1))
    assert count_found(other, 40) == 40


@pytest.mark.parametrize("offset", [0, 20, 53, COUNTERS_OFFSET])
def test_a_damaged_head_is_refused(tmp_path: Path, offset: int) -> None:
    new_file(tmp_path / "file")
    overwrite(tmp_path / "file", offset, b"\xff\x01\xff")
    with pytest.raises(DamagedCacheError):
        read_header(tmp_path / "file")


@pytest.mark.parametrize("size", [0, 10, 5000, 999_999])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    new_file(tmp_path / "file")
    os.truncate(tmp_path / "file", size)
    with pytest.raises(DamagedCacheError):
        read_header(tmp_path / "file")


def test_counters_older_than_the_slots_overwrite_no_pixels(tmp_path: Path) -> None:
    """After a power failure, the disk may have newer slots than counters."""
    table = new_file(tmp_path / "file")
    table.add(key(0), picture(0), (1, 1))
    counters = (tmp_path / "file").read_bytes()[COUNTERS_OFFSET:SLOTS_OFFSET]
    for number in range(1, 20):
        table.add(key(number), picture(number), (1, 1))
    overwrite(tmp_path / "file", COUNTERS_OFFSET, counters)
    other = RecordFile(tmp_path / "file", 10)
    for number in range(20, 40):
        other.add(key(number), picture(number), (1, 1))
    assert count_found(other, 40) == 40


def test_pixels_that_a_user_changes_are_changed_for_no_other(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file")
    table.add(key(1), picture(1), (1, 1))
    record = table.find(key(1))
    assert record is not None
    table.pixels(record)[:] = 0
    assert count_found(RecordFile(tmp_path / "file", 10), 2) == 1


def test_a_file_is_in_use_until_it_is_closed(tmp_path: Path) -> None:
    table = new_file(tmp_path / "file")
    assert is_in_use(tmp_path / "file")
    table.close()
    assert not is_in_use(tmp_path / "file")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(data)
