"""The changes that tests/mutants.py makes of the code."""

from pathlib import Path

import pytest

from helpers import mutations

ROOT = Path(__file__).parents[1]


def change(source: str) -> dict[str, list[str]]:
    """Return the mutants of a source, by the kind of the change."""
    found: dict[str, list[str]] = {}
    for mutation in mutations.find_mutations(source):
        assert mutations.is_mutant(source, mutation)
        found.setdefault(mutation.operator, []).append(mutations.apply(source, [mutation]))
    return found


@pytest.mark.parametrize(
    ("source", "operator", "expected"),
    [
        ("a < b", "comparison", ["a <= b"]),
        ("(a) not  in (b)", "comparison", ["(a) in (b)"]),
        ("a < b == c", "comparison", ["a <= b == c", "a < b != c"]),
        ("a is not b", "comparison", ["a is b"]),
        ("a + b", "arithmetic", ["a - b"]),
        ("(a\n  // b  # // c\n)", "arithmetic", ["(a\n  * b  # // c\n)"]),
        ("a -= b", "arithmetic", ["a += b"]),
        ("a -= b", "removed statement", ["pass"]),
        ("a and (b) and c", "and/or", ["a or (b) and c", "a and (b) or c"]),
        ("not a", "not", ["(a)"]),
        ("if a:\n    b", "not", ["if not (a):\n    b"]),
        ("b = c if a else d", "not", ["b = c if not (a) else d"]),
        ("-a", "sign", ["(a)"]),
        ("a = 2", "constant", ["a = 1", "a = 3"]),
        ("a = [True]", "True/False", ["a = [False]"]),
        ("a = min(b, c)", "function", ["a = max(b, c)"]),
        ("a = np.minimum(b, c)", "function", ["a = np.maximum(b, c)"]),
        ("a[b:c]", "slice bound", ["a[:c]", "a[b:]"]),
        ("if a:\n    b.c(d)", "removed statement", ["if a:\n    pass"]),
        ("a.b = c", "removed statement", ["pass"]),
        ("raise A('1')", "removed statement", ["pass"]),
        ("while a:\n    break", "removed statement", ["while a:\n    pass"]),
        ("def a():\n    return b", "return None", ["def a():\n    return None"]),
        ("é = 'ü' if é < b else c", "comparison", ["é = 'ü' if é <= b else c"]),
    ],
)
def test_each_kind_of_change(source: str, operator: str, expected: list[str]) -> None:
    assert change(source).get(operator) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring: 1 + 1."""',
        "a: Literal[1] | None",
        "def a(b: c[1] = d) -> e[2]: ...",
        "import a, b",
        "__all__ = ['a'][0:1]",
        "if TYPE_CHECKING:\n    a = 1",
        "_log.warning('%d', 1 + 1)",
        "warnings.warn(f'{a + 1}', stacklevel=2)",
        "raise A(\n    f'{a + 1}', 3\n)",
        "a = f'{b + 1}' + 'c'",
        "a = int | None",
        "a = np.ndarray | Tensor",
        "a = Literal[1, 2]",
        "@dataclass(frozen=True)\nclass A: ...",
        "def a():\n    return None",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert change(source) == {}


@pytest.mark.parametrize(
    "module", ["gpupipe/sampling/epochs.py", "gpupipe/formats/tar.py", "gpupipe/errors.py"]
)
def test_a_mutant_of_a_module_differs_in_one_line(module: str) -> None:
    source = (ROOT / module).read_text()
    found = mutations.find_mutations(source)
    assert len(found) > 10
    assert all(mutations.is_mutant(source, mutation) for mutation in found[::40])
    for mutation in found[::7]:
        mutant = mutations.apply(source, [mutation])
        lines, changed = source.splitlines(), mutant.splitlines()
        (line,) = [n for n, (a, b) in enumerate(zip(lines, changed, strict=True), 1) if a != b]
        assert line == mutation.line


@pytest.mark.parametrize(
    ("source", "text"),
    [("a = 1\n", "b c"), ("a = 1\n", "(1)"), ("a = 1\n", "1 is 1")],
    ids=["does not compile", "is the same program", "warns"],
)
def test_what_is_no_mutant(source: str, text: str) -> None:
    assert not mutations.is_mutant(source, mutations.Mutation("constant", 1, 4, 5, text))


def test_mutations_of_one_source_together() -> None:
    source = "a = 1\nb = c < d\n"
    first, last = mutations.find_mutations(source)[::2]
    assert mutations.apply(source, [first, last]) == "a = 0\nb = c <= d\n"
