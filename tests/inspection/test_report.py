"""The page of an inspection: all findings with pictures, and nothing from elsewhere."""

import json
import re
from pathlib import Path

from gpupipe.inspection import report
from gpupipe.inspection.examine import MIN_SIDE
from gpupipe.inspection.faults import KINDS
from gpupipe.inspection.findings import as_json, find_all
from inspection.conftest import Planted


def test_the_page_shows_each_finding_with_its_pictures(planted: Planted, tmp_path: Path) -> None:
    scans = [planted.scan(name) for name in ("train", "val")]
    findings = find_all(scans)
    results = as_json(scans, findings)
    page = report.write(tmp_path / "deep" / "er", "<planted>", results, findings)
    assert json.loads((page.parent / "inspect.json").read_text()) == json.loads(json.dumps(results))
    text = page.read_text()
    assert "<title>gpupipe inspect: &lt;planted&gt;</title>" in text
    assert "<html>404" not in text  # what the broken file begins with
    assert "b&#39;&lt;html&gt;404" in text
    titles = re.findall(r"<h2>(\w+): ", text)
    assert titles == [finding.kind for finding in findings if finding.groups]
    assert set(planted.expected) == set(titles) <= set(KINDS)
    shown = sum(finding.count for finding in findings)
    captions = re.findall(r"<figcaption>(train|val): ", text)
    pictures = re.findall(r'<img alt="[^"]+" src="data:image/jpeg;base64,/9j/', text)
    assert len(captions) == shown
    assert len(pictures) == shown - 2  # of a broken and of a truncated file there is none
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []
    assert f"keeps {MIN_SIDE} pixels" in text
    values = results["data"]["train"]["normalize"]
    assert f"- normalize: {{mean: {values['mean']}, std: {values['std']}}}" in text
