"""What was planted is found, and nothing else."""

import json
from pathlib import Path

import pytest

from gpupipe.inspection.faults import KINDS, OF_PIXELS
from gpupipe.inspection.findings import as_json, find_all
from inspection.conftest import Planted


@pytest.mark.parametrize("headers_only", [False, True])
def test_all_that_was_planted_is_found_and_no_good_file(
    planted: Planted, headers_only: bool
) -> None:
    scans = [planted.scan(name, headers_only) for name in ("train", "val")]
    results = json.loads(json.dumps(as_json(scans, find_all(scans))))
    found = {
        kind: {
            frozenset(Path(s["path"]).relative_to(planted.root).as_posix() for s in group)
            for group in groups
        }
        for kind, groups in results["findings"].items()
    }
    kinds = [kind for kind in KINDS if not headers_only or kind not in OF_PIXELS]
    assert found == {kind: planted.expected.get(kind, set()) for kind in kinds}
    (cut,) = results["findings"]["truncated"][0]
    assert "its end is missing" in cut["why"]
    assert cut["label"] == "0"
    assert results["data"]["train"]["images"] == 35
    assert (results["data"]["train"]["normalize"] is None) == headers_only


def test_no_leaks_are_looked_for_in_one_data_set(planted: Planted) -> None:
    findings = {finding.kind: finding.count for finding in find_all([planted.scan("train")])}
    assert "leaks" not in findings
    assert findings["duplicates"] == 2
