"""Words that a reader has to read twice are in no page, in no help text and in no docstring."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RIDDLES = re.compile(
    r"must be written\b(?! (as|for))|\b[Aa]n own\b|\bas ever\b|\bkeys with values\b|\bstands at\b"
    r"|\b[Oo]f what goes\b|\b[Ww]hat becomes of\b|\b[Ww]hat limits cannot\b|\beach any value\b"
    r"|\bstands? in the list itself\b|\bwhich decides as\b"
)


def test_no_page_and_no_source_has_them() -> None:
    files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("gpupipe/**/*.py"), *ROOT.glob("*.md")]
    assert len(files) > 400
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        for match in RIDDLES.finditer(" ".join(path.read_text(encoding="utf-8").split()))
    ]
    assert found == []
