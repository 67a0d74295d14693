"""The page of the laws names tests that exist, and all tests that name a law."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "laws.md").read_text()
SECTIONS = re.split(r"^## Law (\d+): .*$", PAGE, flags=re.M)
LAWS = {int(n): text for n, text in zip(SECTIONS[1::2], SECTIONS[2::2], strict=True)}


def named_tests(text: str) -> list[str]:
    """Return the tests of a section, as pytest names them."""
    bullets = re.findall(r"^- `(tests/\S+\.py)`:\n((?:  `test_\w+`,?\n)+)", text, re.M)
    assert len(bullets) == text.count("\n- "), "'- `file`:', then a test a line"
    return [f"{file}::{test}" for file, lines in bullets for test in re.findall(r"\w+", lines)]


def test_laws_are_numbered_and_each_has_tests() -> None:
    assert list(LAWS) == list(range(1, len(LAWS) + 1))
    for number, text in LAWS.items():
        named = named_tests(text)
        assert named, f"law {number} has no tests"
        assert len(set(named)) == len(named), f"law {number}"


def test_each_test_that_the_page_names_exists() -> None:
    missing = []
    for test in named_tests(PAGE):
        file, _, function = test.partition("::")
        path = ROOT / file
        if not path.is_file() or f"\ndef {function}(" not in path.read_text():
            missing.append(test)
    assert missing == [], "renamed, moved or gone: name the tests that hold the law now"


def test_each_test_of_a_law_is_in_the_section_of_its_law() -> None:
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name, first, second in re.findall(
            r"^def (test_laws?_(\d+)(?:_and_(\d+))?_\w+)", path.read_text(), re.M
        ):
            found |= {(int(n), f"{path.relative_to(ROOT)}::{name}") for n in (first, second) if n}
    assert {number for number, _ in found} >= {1, 2, 3}
    named = {(number, test) for number, text in LAWS.items() for test in named_tests(text)}
    assert sorted(found - named) == [], "(law, test)"
