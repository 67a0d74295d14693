"""Stores are read in child processes: their errors, and their end by a signal, are DataErrors."""

from pathlib import Path

import numpy as np
import pytest

from gpupipe.errors import DataError
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.runtime.progress import ignore_progress
from gpupipe.sources.helpers import store_reader
from gpupipe.sources.helpers.store_reader import StoreReader
from helpers.array_stores import LABELS, write_hdf5

REQUEST = StoreRequest({"image": "/images"}, "/labels", {}, None)


def test_stores_are_read_in_their_order_and_never_in_this_process(tmp_path: Path) -> None:
    paths = [write_hdf5(tmp_path / f"{n}.h5") for n in range(5)]
    with StoreReader("hdf5") as reader:
        contents = reader.read(paths, REQUEST, ignore_progress)
        arrays = reader.list_arrays(paths[0])
    assert [store.files for store in contents] == [[str(path)] for path in paths]
    assert all(np.array_equal(store.labels, LABELS) for store in contents)
    assert {array["path"] for array in arrays} == {"/images", "/labels"}


def test_errors_name_the_file_and_the_child_goes_on(tmp_path: Path) -> None:
    good, bad = write_hdf5(tmp_path / "good.h5"), tmp_path / "bad.h5"
    bad.write_bytes(good.read_bytes()[:700])
    with StoreReader("hdf5") as reader:
        with pytest.raises(DataError, match=r"bad\.h5: libhdf5 cannot read it: .*; write it again"):
            reader.read([bad], REQUEST, ignore_progress)
        with pytest.raises(DataError, match=r"none\.h5: .*No such file"):
            reader.read([tmp_path / "none.h5"], REQUEST, ignore_progress)
        assert len(reader.read([good], REQUEST, ignore_progress)) == 1


CHILD = """
import os, resource, signal, sys
for line in sys.stdin:
    if "signal" in line:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "loop" in line:
        resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
        while True:
            pass
    print("{}", flush=True)
"""


def test_a_child_that_crashes_or_loops_is_ended_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand_in_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(store_reader, "_CHILD", "stand_in_child")
    with StoreReader("hdf5") as reader:
        with pytest.raises(DataError, match=r"signal\.h5: it is damaged: libhdf5 ended .*SIGSEGV"):
            reader.read([Path("signal.h5")], REQUEST, ignore_progress)
        with pytest.raises(DataError, match=r"loop\.h5: .* takes more than 300 s of CPU"):
            reader.read([Path("loop.h5")], REQUEST, ignore_progress)
