from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupipe.errors import ConfigError
from gpupipe.schema import document as yamlfile

DEEP = "[" * 5000
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


def parse(text: str) -> yamlfile.Document:
    return yamlfile.parse(text, "f")


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
            "f:2:3: not YAML: a second colon: put a value that holds one in quotes, and a new "
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
            "f:1:4: nested too deeply, or too large; an alias (*name) must not stand inside its "
            "own anchor (&name)",
        ),
        (
            LAUGHS,
            "f:1:4: nested too deeply, or too large; an alias (*name) must not stand inside its "
            "own anchor (&name)",
        ),
        (DEEP, "f: not YAML that can be read: it is nested too deeply"),
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


def test_every_part_has_its_place() -> None:
    document = parse(
        "# comment\na: 1\nlist:\n  - decode\n  - step: {x: 2,\n           y: [3, 4]}\n"
    )
    assert document.where(("a",)) == "f:2:4"
    assert document.where(("a",), of_key=True) == "f:2:1"
    assert document.where(("list", 0)) == document.where(("list", 0), of_key=True) == "f:4:5"
    assert document.where(("list", 1, "step"), of_key=True) == "f:5:5"
    assert document.where(("list", 1, "step", "x")) == "f:5:15"
    assert document.where(("list", 1, "step", "y", 1)) == "f:6:19"


def test_what_is_not_there_points_at_the_nearest_part_above_it() -> None:
    document = parse("# comment\na:\n  b: 1\n")
    assert document.where(("a", "c", "d")) == "f:3:3"
    assert document.where(("a", "c"), of_key=True) == "f:3:3"
    assert document.where(("e",)) == document.where(()) == "f:2:1"
    assert parse("").where(("a",)) == "f:1:1"


def test_what_comes_from_no_file_is_called_by_its_name_and_the_number_in_a_list() -> None:
    document = yamlfile.Document("config", {"a": [{"b": [1, 2]}]})
    assert document.where(("c",)) == "config"
    assert document.where(("a", 0, "b", 1)) == "config: a.0"


def test_merged_keys_point_at_where_they_were_written() -> None:
    document = parse(
        "base: &base {x: 1, y: 2}\nother: &other {z: 3}\na:\n  <<: [*base, *other]\n  y: 5\n"
    )
    assert document.data["a"] == {"x": 1, "y": 5, "z": 3}
    assert document.where(("a", "x")) == "f:1:17"
    assert document.where(("a", "z"), of_key=True) == "f:2:16"
    assert document.where(("a", "y")) == "f:5:6"


def test_a_mappings_own_key_comes_before_merged_ones_and_the_first_merged_before_the_second() -> (
    None
):
    document = parse(
        "one: &one {x: 1, y: 2}\ntwo: &two {x: 3, y: 4, z: 5}\na: {y: 6, <<: [*one, *two]}\n"
    )
    assert document.data["a"] == {"x": 1, "y": 6, "z": 5}
    assert [document.where(("a", key)) for key in "xyz"] == ["f:1:15", "f:3:8", "f:2:27"]


def test_at_and_holds() -> None:
    document = parse("a: {b: [1, {c: }]}\n")
    assert document.at(("a", "b", 0)) == 1
    assert document.at(("a", "b", 1, "c")) is None
    assert document.holds(("a", "b", 1, "c"))
    assert not document.holds(("a", "b", 2))
    assert not document.holds(("a", "x", "y"))
    assert document.at(("a", "x", "y")) is None
    assert document.at(("a", "b", "c")) is None


def test_put_changes_one_thing_and_says_so() -> None:
    document = parse("a: {b: 1, c: 2}\n")
    document.put(("a", "b"), 3, "'a.b=3'")
    document.put(("x", "y", "z"), 4, "'x.y.z=4'")
    assert document.data == {"a": {"b": 3, "c": 2}, "x": {"y": {"z": 4}}}
    assert document.where(("a", "b")) == document.where(("a", "b"), of_key=True) == "'a.b=3'"
    assert document.where(("a", "c")) == "f:1:14"
    assert document.where(("x", "q")) == document.where(("x", "y", "z")) == "'x.y.z=4'"


def test_put_merges_mappings_and_replaces_lists() -> None:
    document = parse("a: {b: {c: 1, d: 2}, e: [1, 2, 3]}\n")
    document.put(("a",), {"b": {"d": 5}, "e": [9]}, "'a'")
    assert document.data == {"a": {"b": {"c": 1, "d": 5}, "e": [9]}}
    assert document.where(("a", "b", "c")) == "f:1:12"
    assert document.where(("a", "b", "d")) == "'a'"
    assert document.where(("a", "e", 0)) == "'a': a.e.0"


def test_put_into_lists() -> None:
    document = parse("p:\n  - decode\n  - crop: {size: [1, 2]}\n  - flip:\n")
    document.put(("p", "0", "decode", "mode"), "gray", "'0'")
    document.put(("p", "1", "crop", "size", "1"), 7, "'1'")
    document.put(("p", "2", "flip", "p"), 0.5, "'2'")
    assert document.data == {
        "p": [{"decode": {"mode": "gray"}}, {"crop": {"size": [1, 7]}}, {"flip": {"p": 0.5}}]
    }
    assert document.where(("p", 1, "crop", "size", 1)) == "'1'"
    assert document.where(("p", 0, "decode"), of_key=True) == "f:2:5"


@pytest.mark.parametrize(
    ("loc", "message"),
    [
        (("a", "x"), "here: a is 1: there is no 'x' in it to change"),
        (("l", "2"), "here: there is no l.2: l is a list of 2, which count from 0"),
        (("l", "-1"), "here: there is no l.-1: l is a list of 2, which count from 0"),
        (("l", "one", "x"), "here: there is no l.one: l is a list of 2, which count from 0"),
        (("l", "0", "x"), "here: l.0 is 'b': there is no 'x' in it to change"),
    ],
    ids=str,
)
def test_what_put_cannot_do_is_said(loc: tuple[str, ...], message: str) -> None:
    document = parse("a: 1\nl: [b, c]\n")
    with pytest.raises(ConfigError) as error:
        document.put(loc, 5, "here")
    assert str(error.value) == message
    assert document.data == {"a": 1, "l": ["b", "c"]}


def resolved(text: str) -> tuple[Any, list[str]]:
    document, problems = yamlfile.resolve(parse(text))
    return document.data, [str(p) for p in problems]


def test_interpolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "/data")
    monkeypatch.delenv("NOT_SET", raising=False)
    data, problems = resolved(
        "a: ${oc.env:THERE}/x\nb: ${oc.env:NOT_SET,'~/y'}/z\nc: {d: 3}\ne: [{f: '${c.d}'}, "
        "'${c}']\ng: \\${not}\nh: $5\ni: ${oc.decode:${oc.env:NOT_SET,'4'}}\n"
    )
    assert problems == []
    assert data == {
        "a": "/data/x",
        "b": "~/y/z",
        "c": {"d": 3},
        "e": [{"f": 3}, {"d": 3}],
        "g": "${not}",
        "h": "$5",
        "i": 4,
    }


def test_every_interpolation_that_fails_is_said_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    data, problems = resolved(
        "root: ${oc.env:NOT_SET}/x\nlist:\n  - a: ${rot}\n  - ${oc.evn:X}\nself: "
        "${self}\nopen: ${root\nneeded: ???\nfine: 1\n"
    )
    assert problems == [
        "f:1:7: root: the environment variable NOT_SET is not set: set it, or write a "
        "default: ${oc.env:NOT_SET,default}",
        "f:3:8: list.0.a: '${rot}': there is no key 'rot'; did you mean 'root'?",
        "f:4:5: list.1: '${oc.evn:X}': unknown resolver; did you mean 'oc.env'?",
        "f:5:7: self: '${self}' cannot be resolved: Recursive interpolation detected",
        "f:6:7: open: '${root' cannot be read: write ${key} or ${oc.env:NAME,default}, and "
        "for a plain '${' write '\\${'",
        "f:7:9: needed: ??? stands for a value that must be given: write it here, or give "
        "it as an override",
    ]
    assert data["root"] is data["list"][1] is data["open"] is yamlfile.UNRESOLVED
    assert data["fine"] == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin1.yaml").write_bytes(b"a: \xe9\n")
    for name, said in (
        ("latin1.yaml", "cannot be read: .*utf-8.*"),
        ("missing.yaml", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            yamlfile.read(tmp_path / name)
        assert error.value.problems[0].where == str(tmp_path / name)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yamlfile.read(tmp_path / "bom.yaml").data == {"a": 1}


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
