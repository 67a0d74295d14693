from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupipe.errors import ConfigError
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


def parse(text: str) -> Document:
    return yaml_files.parse(text, "f")


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: [1, 2\nb: {c\n",
            "f:2:2: not YAML: expected ',' or ']', but got ':', after the [ at 1:4",
        ),
        ("a: {b: c: d}\n", "f:1:9: not YAML: expected ',' or '}', but got ':', after the { at 1:4"),
        (
            "a: {b: ${c}/x}\n",
            "f:1:9: not YAML: expected ',' or '}', but got '{', after the { at 1:4; a value with "
            "${...} needs quotes here",
        ),
        ("a:\n    b: 1\n  c: 2\n", "f:3:3: not YAML: the indentation does not fit the lines above"),
        ("a:\n  - b\n c: 2\n", "f:3:2: not YAML: the indentation does not fit the lines above"),
        ("a: 1\nb\nc: 2\n", "f:3:1: not YAML: a colon is missing, with a blank after it"),
        ("a:\n\tb: 1\n", "f:2:1: not YAML: a tab: indent with spaces"),
        (
            "a: b: c\n",
            "f:1:5: not YAML: a second colon: put a value that holds one in quotes, and a new "
            "key on its own line",
        ),
        (
            "a: 1\n b: 2\n",
            "f:2:3: not YAML: this line is indented more than 'a: 1' above it, which has a value "
            "already: indent both alike",
        ),
        (
            "a: b: 2\n",
            "f:1:5: not YAML: a second colon: put a value that holds one in quotes, and a new "
            "key on its own line",
        ),
        ("a: 'it\n", "f:1:4: not YAML: the quotes are not closed"),
        ("a: *b\n", "f:1:4: not YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2\n", "f:2:1: not YAML: a second document (---): a file holds one"),
        (
            "a: !!python/object:os.system {b: 1}\n",
            "f:1:4: not YAML: tags such as !!python/... are not read: remove it",
        ),
        (
            "a: 1\nb: !!int one\n",
            "f:1:1: not YAML: a tag (!!...) stands before a value that does not fit it (invalid "
            "literal for int() with base 10: 'one')",
        ),
        (
            "a: !!bool perhaps\n",
            "f:1:1: not YAML: a tag (!!...) stands before a value that does not fit it ('perhaps')",
        ),
        ("a: 1\nb: 'x\0y'\n", "f:2:6: not YAML: the character '\\x00' must not stand in it"),
        ("? [a, b]\n: 1\n", "f:1:3: a key must be a name, not a list or a mapping"),
        (
            "a: &x [*x]\n",
            "f:1:4: nested too deeply: more than 50 lists and mappings stand in each other; an "
            "alias (*name) must not stand inside its own anchor (&name)",
        ),
        (
            LAUGHS,
            "f:1:35: too large: more than 100,000 values, where each alias (*name) counts as all "
            "that its anchor (&name) holds",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_yaml_is_said_where_and_why(text: str, message: str) -> None:
    assert complaint(text) == message


def test_a_key_that_stands_twice_names_both_places() -> None:
    assert complaint("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\nb: 4\n") == (
        "f:5:3: 'c' stands here twice (first at f:3:3): remove one\nf:6:1: 'b' stands here "
        "twice (first at f:2:1): remove one"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2e+3", -2000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.25", -0.25),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        (".inf", float("inf")),
        ("10", 10),
        ("-3", -3),
        ("0", 0),
        ("010", 10.0),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1.2.3", "1.2.3"),
        ("1e", "1e"),
        ("e3", "e3"),
        ("2e", "2e"),
        ("-", "-"),
        ("2024-01-02", "2024-01-02"),
        ("2024-01-02 03:04:05", "2024-01-02 03:04:05"),
        ("=", "="),
        ("yes", True),
        ("no", False),
        ("on", True),
        ("Off", False),
        ("true", True),
        ("y", "y"),
        ("n", "n"),
        ("'yes'", "yes"),
        ("~", None),
        ("null", None),
        ("", None),
        ("~/x", "~/x"),
        ("'10'", "10"),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
    ],
    ids=str,
)
def test_values(text: str, value: Any) -> None:
    found = parse(f"k: {text}" if text != "-" else "k: '-'").data["k"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_as_they_are_written() -> None:
    assert parse("on: 1\n3: 2\n~: 3\n1e3: 4\n2024-01-02: 5\n").data == {
        "on": 1,
        "3": 2,
        "~": 3,
        "1e3": 4,
        "2024-01-02": 5,
    }


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin1.yaml").write_bytes(b"a: \xe9\n")
    for name, said in (
        ("latin1.yaml", "cannot be read: .*utf-8.*"),
        ("missing.yaml", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            yaml_files.read(tmp_path / name)
        assert error.value.problems[0].where == str(tmp_path / name)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_files.read(tmp_path / "bom.yaml").data == {"a": 1}


@pytest.mark.parametrize("line", ["{<<: [%s]}", "{m: 1, <<: [%s]}", "[%s]", "{v: [%s]}"])
def test_aliases_and_merges_count_as_what_they_repeat(line: str) -> None:
    lines = ["x0: &a0 {k: 1}"]
    for n in range(1, 9):
        lines.append(f"x{n}: &a{n} {line % ', '.join([f'*a{n - 1}'] * 9)}")
    with pytest.raises(ConfigError, match=r"^f:\d+:\d+: too large: more than 100,000 values"):
        parse("\n".join(lines))


DEEP = {
    "lists": "a: " + "[" * 900 + "x" + "]" * 900,
    "lists without an end": "a: " + "[" * 100_000,
    "steps": "a: " + "[{random_apply: {p: 0.5, steps: " * 900 + "x" + "}}]" * 900,
    "JSON": '{"a": ' * 900 + "1" + "}" * 900,
    "indented": "\n".join("  " * n + "- " for n in range(900)),
    "merges in a row": "\n".join(f"x{n}: &a{n} {{<<: *a{max(0, n - 1)}}}" for n in range(900)),
    "an anchor in itself": "a: &a\n  <<: *a\n",
}


@pytest.mark.parametrize("text", DEEP)
def test_what_is_nested_too_deeply_is_said_where_it_stands(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:\d+:\d+: nested too deeply: more than 50") as error:
        parse(DEEP[text])
    assert len(error.value.problems) == 1


PIECES = [
    "a",
    "b",
    "?",
    ": ",
    ":",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\n",
    "  ",
    "\t",
    "&a ",
    "*a",
    "<<: ",
    "!!set ",
    "!!int ",
    "!!binary ",
    "!!timestamp ",
    "!!omap ",
    "!x ",
    "|\n",
    ">-\n",
    "'",
    '"',
    "#",
    "%",
    "@",
    "=",
    "1",
    "1e3",
    "~",
    "yes",
    "---\n",
    "...\n",
    "\x00",
    "é",
    "${",
    "\\",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@example("- !!timestamp 2001-99-99")
@example("!!binary a: é")
@example("? !!set {a}\n: 1")
def test_any_text_is_a_document_or_a_complaint(text: str) -> None:
    try:
        document = parse(text)
    except ConfigError as e:
        assert e.problems
        assert all(p.where.startswith("f") and p.what for p in e.problems)
    else:
        assert document.where(()).startswith("f:")
