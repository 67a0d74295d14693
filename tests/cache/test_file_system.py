"""What fsspec's file systems answer, and what is said of it."""

from pathlib import Path

import pytest

from gpupipe.cache.file_system import describe_error, find_proxy, open_file_system
from helpers.faulty_store import serve


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_a_long_answer_of_a_store_is_cut(kind: type[Exception]) -> None:
    name = "" if kind is OSError else "ValueError: "
    assert describe_error(kind("page " * 200)) == name + ("page " * 60)
    assert describe_error(kind("gone  away")) == name + "gone away"
    password = "https://me:" + "geheim" * 20
    assert "geheim" not in describe_error(kind("page " * 50 + password + "@host"))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://host/a", {"proxy": "http://one:1"}),
        ("https://host/a", {"proxy": "http://two:2"}),
        ("https://here/a", {}),
        ("gs://bucket/a", {"session_kwargs": {"trust_env": True}}),
        ("gcs://bucket/a", {"session_kwargs": {"trust_env": True}}),
        ("ftp://host/a", {}),
        ("s3://bucket/a", {}),
    ],
)
def test_each_client_is_told_of_the_proxy_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, object]
) -> None:
    for name, value in (("HTTP", "http://one:1"), ("HTTPS", "http://two:2"), ("FTP", "f://x:1")):
        monkeypatch.setenv(f"{name}_PROXY", value)
    monkeypatch.setenv("NO_PROXY", "here")
    assert find_proxy(url) == options


def test_fsspec_uses_the_proxy_of_the_environment(
    tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tars) as (url, faults):
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("NO_PROXY", "other.invalid")
        files, path = open_file_system("http://store.invalid/a", {})
        assert len(files.find(path)) == 3
        assert faults.asked == ["/a", "/a/"]
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        files, path = open_file_system(f"{url}/a", {})
        assert len(files.find(path)) == 3
    monkeypatch.setenv("NO_PROXY", "::1")
    with serve(tars, "::1") as (url, _):
        files, path = open_file_system(f"{url}/a", {})
        assert len(files.find(path)) == 3
