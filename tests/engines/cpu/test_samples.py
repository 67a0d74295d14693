"""Samples that are read: several at once, each alone if one of them fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe.engines.cpu import samples
from helpers.loaders import loading

load = loading(engine="cpu", threads=1, batch_size=6, shuffle=False)


def test_a_file_that_is_missing_is_named_and_costs_no_other_sample(few: Path) -> None:
    paths = sorted(path for path in few.rglob("*") if path.is_file())
    with load(
        few, ["decode", {"resize": {"size": [8, 8]}}], on_error="skip", max_bad=0.5
    ) as loader:
        paths[2].rename(few / "gone")
        try:
            (batch,) = list(loader)
        finally:
            (few / "gone").rename(paths[2])
        assert batch["id"].tolist() == [0, 1, 3, 4, 5]
        (reason,) = loader.engine.quarantine.reasons.values()
        assert "no such file" in reason


def test_a_failed_read_of_several_is_a_read_of_each(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read_bytes = samples.read_bytes

    def note(column: Any, row: int, data: Any = None) -> Any:
        calls.append(row)
        assert data is None
        return read_bytes(column, row, data)

    def fail(column: Any, ids: Any) -> Any:
        raise OSError

    monkeypatch.setattr(samples, "read_rows", fail)
    monkeypatch.setattr(samples, "read_bytes", note)
    with load(few, ["decode", {"resize": {"size": [8, 8]}}]) as loader:
        (batch,) = list(loader)
    assert calls[:6] == batch["id"].tolist() == list(range(6))
