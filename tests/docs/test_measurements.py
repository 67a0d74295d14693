"""What the site says of the measurements."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_file_of_results_names_its_script_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    from measurements import write_page  # type: ignore[import-not-found]

    page = write_page()
    machines = re.findall("^## (.*)$", page, re.M)
    assert [m for m in machines if not re.match(r"\S.*, [1-9]\d* cores, \S", m)] == []
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [")]
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert len(rows) == len(results) > 20
    for path in results:
        (row,) = (row for row in rows if f"/{path.name})" in row[0])
        _, time, script = (cell.strip("|` ") for cell in row)
        assert re.search(r"\.(py|sh)\)|\.py`\]|gpupipe ", script), f"{path.name}: by which script?"
        assert "/tmp" not in script, f"{path.name}: a folder of the machine"
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", time), f"{path.name}: when?"
