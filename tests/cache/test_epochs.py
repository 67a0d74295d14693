"""The record of epochs that began."""

from __future__ import annotations

import json
from typing import Any

from gpupipe.cache import epochs


def test_a_damaged_record_of_an_epoch_is_left_out(make: Any) -> None:
    made = make()
    (made.folder.dir / "epochs.jsonl").write_text(
        '[]\n{"generation": "x"}\n'
        + json.dumps({"generation": 1, "samples": 2, "time": 3.0})
        + "\n"
    )
    assert epochs.read_epochs(made.folder) == [epochs.Epoch(1, 2, 3.0)]
