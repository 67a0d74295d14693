"""Waits of the test's own thread are collected, and torch's mode ends whatever happens."""

import threading
import warnings

import pytest
import torch

from helpers.sync_waits import waits_of_this_thread


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that were set; as torch does, it warns of each."""
    found: list[str] = []

    def set_mode(mode: str) -> None:
        found.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    return found


def wait() -> None:
    warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=2)


def test_waits_of_this_thread_alone_are_collected(modes: list[str]) -> None:
    with waits_of_this_thread() as waits:
        other = threading.Thread(target=wait)
        other.start()
        other.join()
        assert not waits
        wait()
    assert len(waits) == 1
    assert "test_sync_waits.py" in waits[0]
    assert modes == ["warn", "default"]


def test_the_mode_ends_with_an_error(modes: list[str]) -> None:
    with pytest.raises(KeyError), waits_of_this_thread():
        raise KeyError
    assert modes[-1] == "default"
