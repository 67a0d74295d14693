import pytest

from gpupipe.errors import ConfigError
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document


def parse(text: str) -> Document:
    return yaml_files.parse(text, "f")


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
    document = Document("config", {"a": [{"b": [1, 2]}]})
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
