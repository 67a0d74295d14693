"""The exceptions, and the helpers that word their messages."""

import errno
import os
import pickle
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import (
    ConfigError,
    Problem,
    SampleError,
    StandInWarning,
    StepError,
    counted,
    describe_error,
    did_you_mean,
    hide_secrets,
    nearest,
    short,
    shown,
    warn,
)


def test_mistakes_come_once_those_in_files_by_line_and_overrides_last() -> None:
    error = ConfigError(
        [
            Problem("'batch_size=x'", "an override"),
            Problem("", "no place"),
            Problem("b.yaml:10:1", "third"),
            Problem("b.yaml:9:7", "second"),
            Problem("b.yaml:9:2", "first"),
            Problem("a.yaml:1:1", "in the file that is named after"),
            Problem("b.yaml:10:1", "third"),
        ]
    )
    assert str(error).splitlines() == [
        "b.yaml:9:2: first",
        "b.yaml:9:7: second",
        "b.yaml:10:1: third",
        "a.yaml:1:1: in the file that is named after",
        "no place",
        "'batch_size=x': an override",
    ]
    assert len(error.problems) == 6


def test_a_sample_error_of_another_process_keeps_path_and_reason() -> None:
    error = pickle.loads(pickle.dumps(SampleError("/a.jpg", "cut off")))
    assert (error.path, error.reason) == ("/a.jpg", "cut off")
    assert "/a.jpg: cut off" in str(error) and "loader.on_error=skip" in str(error)


def test_a_step_error_of_another_process_prints_the_traceback_from_there() -> None:
    error = pickle.loads(pickle.dumps(StepError("blur failed", "  line 3, in apply")))
    assert (str(error), error.traceback) == ("blur failed", "  line 3, in apply")
    assert "line 3, in apply" in "".join(traceback.format_exception(error))
    assert pickle.loads(pickle.dumps(StepError("blur failed"))).__cause__ is None


def test_a_warning_points_at_the_first_line_outside_of_gpupipe() -> None:
    inside = {"__name__": "gpupipe.somewhere", "warn": warn, "StandInWarning": StandInWarning}
    exec("def outer(): inner()\ndef inner(): warn('drawn', StandInWarning)", inside)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside["outer"]()
    (warning,) = caught
    assert warning.category is StandInWarning
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("name", "near"),
    [("resise", "resize"), ("lwf", "lfw"), ("zzz", None), ("valid", "validation"), ("val", None)],
)
def test_the_nearest_name(name: str, near: str | None) -> None:
    assert nearest(name, ["resize", "lfw", "decode", "validation"]) == near


def test_an_unknown_name_gets_the_nearest_or_all() -> None:
    assert did_you_mean("resise", ["resize", "crop"]) == "; did you mean 'resize'?"
    assert did_you_mean("zzz", ["resize", "crop"]) == "; known: crop, resize"
    assert did_you_mean("zzz", []) == ""


def test_counts() -> None:
    assert counted(1, "rank") == "1 rank"
    assert counted(0, "rank") == "0 ranks"
    assert counted(2000, "batch", "batches") == "2,000 batches"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "empty"),
        (True, "true"),
        (Path("a/b"), "'a/b'"),
        ([1, "x", False], "[1, 'x', false]"),
        ({"size": (3, None)}, "{size: [3, empty]}"),
    ],
)
def test_values_are_shown_in_yamls_words(value: Any, text: str) -> None:
    assert shown(value) == text


def test_no_password_is_in_a_value_that_is_cut() -> None:
    url = f"https://me:{'geheim' * 20}@host"
    assert shown(url) == "'https://me:***@host'"
    assert shown([{"a": url}]) == "[{a: 'https://me:***@host'}]"


def test_what_is_long_is_cut() -> None:
    assert len(shown(list(range(100)))) == 60
    assert shown(list(range(100))).endswith("...")
    assert short("abcdef", 6) == "abcdef"
    assert short("abcdefg", 6) == "abc..."


def test_an_exception_is_described_by_its_reason() -> None:
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/nowhere")
    assert describe_error(missing) == "no such file or directory"
    assert describe_error(ValueError("7 bytes")) == "7 bytes"
    assert describe_error(EOFError()) == "EOFError"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("http://me:p@ss@host:80/a: gone", "http://me:***@host:80/a: gone"),
        ("ftp://me:a/b@host/c", "ftp://me:***@host/c"),
        ("'https://token@host/a'", "'https://***@host/a'"),
        ("url='https://h/a?sv=1&sig=x%3D', b", "url='https://h/a?***', b"),
        ("(https://h/l.csv?sig=x: no, s3://b/k?sig=y)", "(https://h/l.csv?***: no, s3://b/k?***)"),
        ("https://me:x@h/a?b=c and http://me:y@g/", "https://me:***@h/a?*** and http://me:***@g/"),
        *[
            (text, text)
            for text in ("http://h:80/a@b.tar", "http://[::1]:80/a@b", "http://h/a?.tar")
        ],
        ("http://h/a??b?c=geheim", "http://h/a?***"),
        *[
            (text, text)
            for text in ("file://C:/a@b/c", "(file:///a?b=c.jpg)", "s3://b/a=b?c", r"C:\a@b?c=d")
        ],
        *[(text, text) for text in ("abfs://box@me.net/a", "hf://datasets/me/x@main", "a:b@c?d=e")],
    ],
)
def test_passwords_and_queries_of_urls_are_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden
    assert str(ConfigError.at("", text)) == hidden


@pytest.mark.parametrize(
    "unit", ["http://a:", "://", "http://a:1", "http://u@h/a:", "://a?b", "s3://a:1/@", "?=:", "a"]
)
def test_the_time_to_hide_secrets_is_linear(unit: str) -> None:
    text = "http://me:geheim@host/?" + unit * (1_000_000 // len(unit))  # quadratic: 5 minutes
    assert "geheim" not in hide_secrets(text)
