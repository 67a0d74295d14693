"""What the tests of a GPU share. They need pytest and what gpupipe requires, and no package of an
extra but DALI.

Import anything else with pytest.importorskip(NAME, reason=...). tests/test_gpu_folder.py holds
this.
"""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _checkout_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find gpupipe where it is not installed, in whatever folder they
    run.
    """
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    )
