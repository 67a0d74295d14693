"""Each module has a test file in its place, or is in the list of those that have none."""

from pathlib import Path

import pytest

from helpers import mirror

LIMIT = 24
"""How many modules may have no test file of their own. It only goes down."""


def test_each_module_has_a_test_file_or_is_in_the_list() -> None:
    listed = mirror.LIST.read_text().split()
    missing = [str(module) for module in mirror.list_modules_without_tests()]
    unlisted = [f"{m}: {mirror.mirrored_test(Path(m))}" for m in missing if m not in listed]
    assert unlisted == [], "modules without a test file: write one; the list does not grow"
    stale = [module for module in listed if module not in missing]
    assert stale == [], f"have a test file, or are gone: take them out of {mirror.LIST.name}"
    assert len(listed) == LIMIT, "lower LIMIT to what is left in the list"


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("gpupipe/loader.py", "tests/test_loader.py"),
        ("gpupipe/a/b.py", "tests/a/test_b.py"),
        ("gpupipe/a/b/_c.py", "tests/a/b/test_c.py"),
    ],
)
def test_the_place_of_the_tests_of_a_module(module: str, test: str) -> None:
    assert mirror.mirrored_test(Path(module)) == Path(test)


def test_a_module_without_a_test_file_has_the_nearest_tests_that_name_it(tmp_path: Path) -> None:
    texts = {
        "a/test_b.py": "",
        "a/test_dotted.py": "import gpupipe.a.c as c",
        "a/test_imported.py": "from gpupipe.a import (\n    c,\n    e,\n)",
        "a/test_other.py": "from gpupipe.a import cc\nimport gpupipe.a.ccc",
        "x/test_far.py": "from gpupipe.a import b, c, d\nfrom gpupipe.new.c import C",
        "gpu/test_gpu.py": "from gpupipe.a import c, d, f",
    }
    for name, text in texts.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def find(module: str) -> list[str]:
        return [str(path) for path in mirror.find_tests(Path(module), tmp_path)]

    assert find("gpupipe/a/b.py") == ["tests/a/test_b.py"]
    assert find("gpupipe/a/c.py") == ["tests/a/test_dotted.py", "tests/a/test_imported.py"]
    assert find("gpupipe/a/d.py") == ["tests/x/test_far.py"]
    assert find("gpupipe/a/f.py") == sorted(
        f"tests/{name}" for name in texts if name.startswith("a/")
    )
    assert find("gpupipe/new/b.py") == ["tests/x/test_far.py"]
