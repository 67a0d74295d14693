"""JPEGs with damage within their compressed data, on a GPU: they end no process, and touch no
neighbour.
"""

from pathlib import Path

import pytest

from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.installation import installed_version
from helpers.damaged_scans import DAMAGES, outcome


@pytest.mark.parametrize("hw_decoder_load", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_end_no_process_and_touch_no_neighbour(
    tmp_path: Path, damage: str, hw_decoder_load: float
) -> None:
    found = outcome(damage, "gpu", hw_decoder_load, tmp_path)
    nvjpeg = installed_version(*NVJPEG) or "0"
    if found["status"] and damage != "zeroed" and int(nvjpeg.partition(".")[0]) < 13:
        pytest.xfail(f"nvJPEG {nvjpeg} may crash where no marker shows the damage: {found}")
    assert found["status"] == 0, found
    assert found["good"] == 24
    assert found["levels_off"] <= (3 if hw_decoder_load == 0.9 else 0)
    assert found["delivered"] + found["listed"] == 24
