from __future__ import annotations

import os

import pytest

from gpupipe.protocol.wakeup import Waker


def test_a_waker_that_is_closed_writes_into_nobodys_file() -> None:
    waker = Waker()
    waker.wake()
    waker.wake()
    assert os.read(waker.descriptor, 10) == b"11"
    waker.clear()
    numbers = {waker.descriptor, waker._in}
    waker.close()
    ends = os.pipe2(os.O_NONBLOCK)
    assert set(ends) == numbers, "another pipe has its descriptors now"
    waker.wake()
    waker.close()
    with pytest.raises(BlockingIOError):
        os.read(ends[0], 1)
    for end in ends:
        os.close(end)
