"""URLs with passwords, tokens and IPv6 addresses: what is sent, and what is refused."""

import base64
import json
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.cache.file_system import open_file_system
from gpupipe.cache.urls import move_credentials
from gpupipe.errors import ConfigError, DataError
from helpers.faulty_store import serve
from helpers.stored_shards import PATTERN, cached

SECRET = "geh+eim="


def _has_password(path: str, headers: Mapping[str, str]) -> bool:
    return headers.get("Authorization") == f"Basic {base64.b64encode(b'me:geh+eim=').decode()}"


def _has_token(path: str, headers: Mapping[str, str]) -> bool:
    return parse_qs(urlsplit(path).query) == {"sv": ["1"], "sig": [SECRET]}


@pytest.mark.parametrize(
    ("user", "query", "is_allowed"),
    [("me:geh+eim=@", "", _has_password), ("", "/?sv=1&sig=geh%2Beim%3D", _has_token)],
)
@pytest.mark.parametrize("pattern", [PATTERN, "a/{000..003}.tar"])
def test_shards_behind_a_password_or_a_token_are_listed_and_fetched(
    tars: Path,
    make: Any,
    capfd: pytest.CaptureFixture[str],
    user: str,
    query: str,
    is_allowed: Callable[[str, Mapping[str, str]], bool],
    pattern: str,
) -> None:
    with serve(tars) as (url, faults):
        faults.is_allowed = is_allowed
        made = make({"url": f"http://{user}{url[7:]}{query}", "shards": pattern})
        made.fill()
        assert len(cached(made.folder)) == (6 if pattern == PATTERN else 2)
        failures = str(list(made.filler.statistics.failed.reasons.values()))
        assert failures == "[]" if pattern == PATTERN else "001.tar" in failures
    written = [path.read_bytes() for path in made.folder.dir.rglob("*.json*")]
    assert made.dataset.url == url
    for text in (b"".join(written).decode(), failures, "".join(capfd.readouterr())):
        assert "eim" not in text


@pytest.mark.parametrize("status", [403, 404, 500])
def test_no_token_is_in_the_message_of_a_failure(
    tars: Path, tmp_path: Path, make: Any, status: int
) -> None:
    with serve(tars) as (url, faults):
        data = {"url": f"{url}/?sig={SECRET}", "shards": "x*.tar"}
        manifest = {"manifest": f"{url}/list.csv?sig={SECRET}"}
        if status == 500:
            faults.errors |= {"/": 9, "list.csv": 9}
        faults.is_allowed = lambda path, headers: status != 403
        for wrong, name in ((data, url), (data | manifest, "list.csv: cannot be read")):
            with pytest.raises(DataError, match=name) as caught:
                make(wrong, dir=tmp_path / name[:4])
            assert "eim" not in str(caught.value)


def test_no_token_is_in_the_message_of_an_empty_manifest(tmp_path: Path, make: Any) -> None:
    (tmp_path / "list.csv").write_text("path,label\n")
    no_rows = pytest.raises(DataError, match=r"list\.csv: no rows")
    with serve(tmp_path) as (url, _), no_rows as caught:
        make({"url": url, "manifest": f"{url}/list.csv?sig={SECRET}"})
    assert "eim" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://key:geheim@bucket/a", r"s3://key:\*\*\*@bucket/a: only URLs of web servers"),
        ("az://box/a?sv=1&sig=geheim", r"az://box/a\?\*\*\*: only URLs .* {sas_token: "),
        ("zip://a::https://host/b.zip?sig=geheim", r"zip://a::https://host/b.zip\?\*"),
        ("https://host/a?geheim", r"https://host/a\?\*\*\*: only URLs"),
        ("https://host/a?b=1&b=geheim", ".*only URLs of web servers"),
        ("https://me:ge/heim@host/a", r"https://me:\*\*\*@host/a: only URLs"),
        (
            "https://b.s3.amazonaws.com/a?X-Amz-Signature=geheim",
            ".*a presigned URL opens one object",
        ),
        ("https://storage.googleapis.com/b?X-Goog-Signature=geheim", ".*a presigned URL"),
    ],
)
def test_other_urls_are_refused_where_they_stand(tmp_path: Path, url: str, said: str) -> None:
    file = tmp_path / "train.yaml"
    data = f"data:\n  source: remote\n  url: {url}\n  shards: '*.tar'\n"
    file.write_text(f"{data}  cache: {{dir: cache, max_bytes: 1GB}}\npipeline: [decode]\n")
    with pytest.raises(ConfigError, match=f"train.yaml:3:8: data.url: {said}") as caught:
        configs.read(str(file))
    assert "heim" not in str(caught.value)
    assert "storage_options" in str(caught.value)


def test_what_is_no_secret_stays() -> None:
    for url in ("https://host:80/a@b", "s3://bucket/a", "abfs://box@me.net/a", "file:///a?b=c"):
        assert move_credentials(url, {"a": 1}) == (url, {"a": 1})
    assert move_credentials("https://tok%40en@host", {})[1] == {
        "headers": {"Authorization": f"Basic {base64.b64encode(b'tok@en:').decode()}"}
    }
    own = {"headers": {"Authorization": "x"}, "params": {"b": "2"}}
    assert move_credentials("https://me:x@host/?a=1&b=1", own) == (
        "https://host/",
        {"headers": {"Authorization": "x"}, "params": {"a": "1", "b": "2"}},
    )


@pytest.mark.parametrize("is_same", [True, False])
def test_options_go_to_a_manifest_of_the_same_server_alone(
    tars: Path, tmp_path: Path, make: Any, is_same: bool
) -> None:
    (tmp_path / "list.csv").write_text("path\na/000.tar\n")
    tokens = []
    with serve(tars) as (url, _), serve(tmp_path) as (other, faults):
        faults.is_allowed = lambda path, headers: not tokens.append(urlsplit(path).query)
        data = {"url": f"{other if is_same else url}?sig=x", "shards": PATTERN}
        make(data | {"manifest": f"{other}/list.csv"})
    assert tokens[0] == ("sig=x" if is_same else "")


@pytest.mark.parametrize("pattern", [PATTERN, "a/{000..003}.tar"])
def test_shards_come_from_an_ipv6_address(tars: Path, make: Any, pattern: str) -> None:
    with serve(tars, "::1") as (url, _):
        made = make({"url": url, "shards": pattern})
        made.fill()
        assert len(cached(made.folder)) == (6 if pattern == PATTERN else 2)
    assert made.dataset.url == url
    assert url.startswith("http://[::1]:")


def test_an_ipv6_address_may_be_in_a_chain_of_urls(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("d/0.tar", b"x")
    with serve(tmp_path, "::1") as (url, _):
        files, path = open_file_system(f"zip://d::{url}/a.zip", {})
        assert list(files.find(path)) == ["d/0.tar"]
    with pytest.raises(DataError, match=r"http://\[::1::2\]/a: cannot be opened"):
        open_file_system("http://[::1::2]/a", {})


@pytest.mark.parametrize("url", ["http://me:geheim@127.0.0.1:1/a?sig=geheim", "s3://me:geheim@b"])
def test_no_password_is_in_the_traceback_of_an_override(tmp_path: Path, url: str) -> None:
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "1GB", "retries": 0}
    data = {"source": "remote", "url": "s3://b", "shards": "*.tar", "cache": cache}
    file = tmp_path / "train.yaml"
    file.write_text(json.dumps({"data": data, "pipeline": ["decode"]}))
    for overrides, changes in (((f"data.url={url}",), {}), ((), {"data": {"url": url}})):
        with pytest.raises((ConfigError, DataError), match="data") as caught:
            gpupipe.load(str(file), *overrides, **changes)
        text = "".join(traceback.format_exception(caught.value))
        assert "geheim" not in text
        assert "***" in text


@pytest.mark.parametrize("name", ["run[1]", "[abc]", "a:@[1]"])
def test_brackets_in_a_folder_are_no_address(tmp_path: Path, make: Any, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.png").write_bytes(b"x")
    (tmp_path / "list?.csv").write_text("path,label\n0.png,a\n")
    url = f"file://{tmp_path}/{name}"
    files, path = open_file_system(url, {})
    assert list(files.find(path)) == [str(tmp_path / name / "0.png")]
    made = make({"url": url, "manifest": f"file://{tmp_path}/list?.csv"})
    assert made.dataset.manifest_name == f"file://{tmp_path}/list?.csv"
