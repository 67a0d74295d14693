"""Claims between real processes; the commit log: generations, and lines that are none."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.cache.shared_files import CachedShard, Claim, CommitLog, is_abandoned
from gpupipe.errors import DataError
from gpupipe.runtime.files import read_json_object
from helpers.forked_python import Process

HOLD = """
import sys; from pathlib import Path; from gpupipe.cache.shared_files import Claim
claim = Claim(Path(sys.argv[1]), {'a': 1}); print('held', flush=True); sys.stdin.read()
"""


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    pipe = subprocess.PIPE
    with Process(["-c", HOLD, path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert not is_abandoned(path)
        assert read_json_object(path) == {"a": 1}
        holder.send_signal(signal.SIGKILL)
    assert path.exists()
    assert is_abandoned(path)


def test_a_claim_that_is_released_or_collected_is_gone(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {})
    assert not is_abandoned(tmp_path / "a")
    claim.release()
    claim.release()
    claim.write({"late": 1})
    assert not (tmp_path / "a").exists()
    assert read_json_object(tmp_path / "a") == {}
    Claim(tmp_path / "b", {})
    assert not (tmp_path / "b").exists()


def test_a_forked_child_does_not_take_the_claim_with_it(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"n": 1})
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_json_object(tmp_path / "a") == {"n": 1}
    assert not is_abandoned(tmp_path / "a")
    claim.release()


def test_writing_in_place_never_shortens_the_file(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"long": "x" * 5000})
    size = (tmp_path / "a").stat().st_size
    claim.write({"short": 1})
    assert (tmp_path / "a").stat().st_size == size == 8192
    assert read_json_object(tmp_path / "a") == {"short": 1}
    claim.release()


HASH = "0123456789abcdef" * 2


def shard(number: int, samples: int = 3) -> CachedShard:
    return CachedShard(f"{number:08}", samples, 1000 * number, HASH, 152, HASH, 1.5)


def filled(path: Path) -> CommitLog:
    log = CommitLog(path)
    for n in (1, 2):
        log.publish(shard(n))
    log.evict(["00000001"], "to make room")
    log.publish(shard(3))
    return log


def test_any_generation_can_be_rebuilt_by_any_reader(tmp_path: Path) -> None:
    filled(tmp_path / "m")
    reader = CommitLog(tmp_path / "m")
    assert reader.generation == 0
    reader.refresh()
    assert [list(reader.live_shards(g)) for g in range(5)] == [
        [],
        ["00000001"],
        ["00000001", "00000002"],
        ["00000002"],
        ["00000002", "00000003"],
    ]
    assert reader.live_shards() == reader.live_shards(4)
    assert reader.live_shards() == {"00000002": shard(2), "00000003": shard(3)}
    assert reader.publication_generations() == {"00000001": 1, "00000002": 2, "00000003": 4}
    assert set(reader.published) == {"00000001", "00000002", "00000003"}


def test_a_reader_sees_what_another_process_adds_later(tmp_path: Path) -> None:
    reader, writer = CommitLog(tmp_path / "m"), filled(tmp_path / "m")
    reader.refresh()
    writer.publish(shard(4))
    assert reader.generation == 4
    reader.refresh()
    assert reader.generation == 5
    assert "00000004" in reader.live_shards()


@pytest.mark.parametrize("kept", [1, 20, 100])
def test_a_line_that_was_cut_off_was_never_there(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "m"
    filled(path)
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole[: -len(last)] + last[:kept])
    reader, writer = CommitLog(path), CommitLog(path)
    reader.refresh()
    assert reader.generation == 3
    writer.publish(shard(9))
    reader.refresh()
    assert list(reader.live_shards()) == ["00000002", "00000009"]
    assert path.read_bytes().endswith(b"}\n")
    assert [json.loads(line)["generation"] for line in path.read_text().splitlines()] == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    "name", ["../../etc", "0000001", "00000001/../x", "/etc/passwd", "", "\u0661" * 8, "00000001\n"]
)
def test_a_shard_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    for record in ({"evict": [name]}, {"publish": shard(1).__dict__ | {"name": name}}):
        (tmp_path / "m").write_text(json.dumps({"generation": 1} | record) + "\n")
        with pytest.raises(DataError, match=r"m:1: not a line of a cache's manifest"):
            CommitLog(tmp_path / "m").refresh()


def test_a_gap_between_generations_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(
        DataError, match=r"m:2: .*generation 3 in place of 2.*delete the cache's folder"
    ):
        CommitLog(path).refresh()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
                lambda v: json.dumps(v).encode()
            ),
        )
    )
)
def test_no_content_does_anything_but_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "manifest-of-anything"
    path.write_bytes(b"\n".join(lines) + b"\n")
    try:
        CommitLog(path).refresh()
    except DataError as e:
        assert str(path) in str(e)
