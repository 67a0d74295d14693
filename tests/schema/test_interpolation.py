from typing import Any

import pytest

from gpupipe.errors import ConfigError
from gpupipe.schema import interpolation
from gpupipe.schema.document import UNRESOLVED
from gpupipe.schema.yaml_files import parse


def resolved(text: str) -> tuple[Any, list[str]]:
    document, problems = interpolation.resolve(parse(text, "f"))
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
    assert data["root"] is data["list"][1] is data["open"] is UNRESOLVED
    assert data["fine"] == 1


CHAINS = {
    "in a row": [f"k{n}: ${{k{n + 1}}}" for n in range(200)],
    "in a row, from the end": [f"k{n}: ${{k{n + 1}}}" for n in reversed(range(200))],
    "twice each": [f"k{n}: ${{k{n + 1}}}${{k{n + 1}}}" for n in range(18)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_references_to_references_are_bounded(chain: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:\d+:\d+: k\d+: .*at most 20 in a row") as error:
        resolved("\n".join(CHAINS[chain]))
    assert len(error.value.problems) == 1


@pytest.mark.parametrize("inner", ["${%s}", "${oc.env:%s}", "${oc.env:X,%s}", "${oc.decode:[%s]}"])
def test_what_is_nested_too_deeply_is_said_in_one_line(inner: str) -> None:
    text = "x"
    for _ in range(200):
        text = inner % text
    (problem,) = resolved(f"a:\n  root: '{text}'\n")[1]
    assert problem.startswith("f:2:9: a.root: ")
    assert problem.endswith("nested too deeply: at most 20 ${...} in each other")
    assert "\n" not in problem
