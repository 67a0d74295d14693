"""Settings of a cache, and of what it caches."""

from typing import Any

import pydantic
import pytest

from gpupipe.cache.settings import CacheOptions, DataSet

CACHE = {"dir": "/cache", "max_bytes": "1GB"}
DATA = {"url": "s3://bucket/folder"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"low_water": 1.5}, "low_water"),
        ({"connections": 0}, "connections"),
        ({"wait": 0}, "wait"),
        ({"maxbytes": 1}, "maxbytes"),
    ],
)
def test_caches_that_are_refused(settings: dict[str, Any], said: str) -> None:
    CacheOptions(**CACHE)
    with pytest.raises(pydantic.ValidationError, match=said):
        CacheOptions(**CACHE | settings)
    said = r"max_bytes is 1.0GB, but should be at least 4 times shard_size \(300.0MB\)"
    with pytest.raises(ValueError, match=said):
        CacheOptions(**CACHE, shard_size="300MB").check_shard_size()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "/folder"}, "a URL such as"),
        ({"url": "memory://x"}, "seen by one process alone"),
        ({"manifest": "list.txt"}, "should end in .csv or .parquet"),
        ({"weight": "w"}, "weight: of a manifest, and none is given"),
        ({"path": "p", "values": ["v"]}, "path and values: of a manifest"),
        ({"manifest": "m.csv", "values": ["label", "id"]}, "id, label: what a batch has anyway"),
    ],
)
def test_data_sets_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        DataSet(**DATA | settings)


def test_secrets_and_seeds_are_no_part_of_what_a_data_set_is() -> None:
    one = DataSet(**DATA, storage_options={"secret": "x"}, seed=1)
    assert one.identity == DataSet(url="s3://bucket/folder/").identity
    assert one.identity != DataSet(**DATA, label=None).identity
    assert "secret" not in str(one.identity)


def test_a_password_and_a_token_of_a_web_server_are_in_no_file_and_no_message() -> None:
    secrets = {"url": "https://me:geheim@host/a/?sig=geheim%3D", "storage_options": {"headers": {}}}
    one = DataSet(**secrets, manifest="https://me:geheim@host/list.csv?sig=geheim")
    assert one.url == "https://host/a"
    assert one.storage_options == {
        "headers": {"Authorization": "Basic bWU6Z2VoZWlt"},
        "params": {"sig": "geheim="},
    }
    assert one == DataSet(**one.model_dump(exclude_unset=True)), "as workers get it"
    assert "geheim" not in str(one.identity) + repr(one).replace(str(one.manifest), "")
    assert one.manifest_name == "https://me:***@host/list.csv"
    with pytest.raises(pydantic.ValidationError, match=r"'https://me:\*\*\*@host/list', but"):
        DataSet(url="https://host", manifest="https://me:geheim@host/list?a=b.csv")
