import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.dataset.index import Index
from gpupipe.errors import StateError
from gpupipe.loading.run_state import check_state, find_difference, sample_content
from gpupipe.sources.folder import Folder
from helpers.loaders import load

OPTIONS: dict[str, Any] = {"engine": "cpu", "batch_size": 4, "threads": 1}


@pytest.fixture
def root(tmp_path: Path, faces: Path) -> Path:
    """Twelve images in two classes."""
    for n, face in enumerate(sorted(faces.glob("*/*.jpg"))[:12]):
        folder = tmp_path / "data" / f"class_{n % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(face, folder / f"{n}.jpg")
    return tmp_path / "data"


def state_after(root: Path, batches: int, **options: Any) -> dict[str, Any]:
    with load(root, **OPTIONS | options) as loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
        return state


def resume(root: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Load a state, and return the state after one more batch."""
    strict = options.pop("strict", True)
    with load(root, **OPTIONS | options) as loader:
        loader.load_state_dict(state, strict)
        next(iter(loader))
        return dict(loader.state_dict())


def test_another_size_under_the_same_name_is_other_data(root: Path) -> None:
    state = state_after(root, 1)
    image = root / "class_1" / "3.jpg"
    then = image.stat().st_size
    image.write_bytes(image.read_bytes() + b"\0")
    rule = rf"{image} had {then:,} bytes, and has {then + 1:,} now; of 12 .* 1 differ"
    with pytest.raises(gpupipe.StateError, match=rule):
        resume(root, state)
    assert resume(root, state, strict=False)["step"] == 2


def test_other_content_of_the_same_size_is_other_data(root: Path) -> None:
    state = state_after(root, 1)
    image = root / "class_0" / "2.jpg"
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    with pytest.raises(gpupipe.StateError, match=rf"{image} has the size .* but other content"):
        resume(root, state)


def test_times_do_not_matter_and_nor_does_a_file_that_is_gone(root: Path) -> None:
    state = state_after(root, 1)
    os.utime(root / "class_0" / "0.jpg", (1, 1))
    (root / "class_0" / "2.jpg").unlink()
    (root / "class_0" / "2.jpg").symlink_to("nowhere.jpg")
    (root / "class_1" / "1.jpg").write_bytes((root / "class_1" / "1.jpg").read_bytes())
    again = resume(root, state, on_error="skip", max_bad=0.5)
    assert again["content"]["sizes"].count(None) == 1
    assert again["content"]["hashes"].count(None) == 1


def test_a_state_is_small_and_its_sample_is_that_of_the_first_call(tmp_path: Path) -> None:
    for n in range(1200):
        (tmp_path / "data" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "a" / f"{n}.jpg").write_bytes(bytes(10_000 + n))
    with load(tmp_path / "data") as loader:
        for file in (tmp_path / "data" / "a").iterdir():
            file.write_bytes(bytes(20_000 + int(file.stem)))
        content = loader.state_dict()["content"]
        assert min(content["sizes"]) >= 20_000, "it is not taken while the loader is made"
        assert 500 < len(content["sizes"]) <= 1000
        assert 16 <= len(content["hashes"]) <= 32
        assert len(json.dumps(loader.state_dict())) < 10_000
        for file in (tmp_path / "data" / "a").iterdir():
            file.unlink()
        assert loader.state_dict()["content"] == content


def test_a_state_of_version_1_loads_and_is_checked_by_what_it_has(root: Path) -> None:
    state = state_after(root, 1)
    old = {k: state[k] for k in ("data", "pipeline", "seed", "shuffle", "epoch", "position")}
    again = resume(root, old | {"version": 1})
    assert (again["version"], again["step"], again["position"]) == (2, 1, 8)
    with pytest.raises(gpupipe.StateError, match="other data"):
        resume(root, old | {"version": 1, "data": "0" * 32})


def test_the_history_has_an_entry_for_each_resume_with_other_settings(
    root: Path,
) -> None:
    state = state_after(root, 1)
    settings = {"world_size": 1, "batch_size": 4}
    first = {"step": 0, "epoch": 0, "position": 0} | settings
    assert (state["step"], state["history"]) == (1, [first])
    state = resume(root, state)
    assert (state["step"], state["history"]) == (2, [first])
    state = resume(root, state, batch_size=2)
    second = {"step": 2, "epoch": 0, "position": 8, "world_size": 1, "batch_size": 2}
    assert (state["step"], state["history"]) == (3, [first, second])
    for n in range(40):
        state = resume(root, state | {"epoch": n, "position": 0}, batch_size=3 + n % 2)
    assert len(state["history"]) == 32
    assert state["history"][0] == first
    assert state["history"][-1]["step"] == state["step"] - 1


def test_a_resumed_run_knows_and_reports_what_was_skipped(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = root / "class_1" / "3.jpg"
    whole = bad.read_bytes()
    bad.write_bytes(b"")
    options: dict[str, Any] = {"on_error": "skip", "max_bad": 0.5, "shuffle": False}
    state = state_after(root, 3, **options)
    (row,) = state["skipped"]
    bad.write_bytes(whole)
    state["content"] = {}  # the file is mended, so that its size differs
    again = resume(root, state, **options)
    assert again["skipped"] == [row]
    (line,) = [text for text in caplog.messages if "skipped" in text]
    assert str(bad) in line and "1 sample" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("content", 3),
        ("step", -1),
        ("skipped", [-1]),
        ("skipped", "none"),
        ("history", [{}]),
        ("functions", []),
    ],
)
def test_a_damaged_part_is_refused(root: Path, key: str, value: object) -> None:
    with pytest.raises(gpupipe.StateError, match=f"whose '{key}' is"):
        resume(root, state_after(root, 1) | {key: value})


@pytest.mark.parametrize("content", [{}, {"sizes": 3}, {"sizes": ["x"] * 12, "hashes": [1] * 12}])
def test_content_that_cannot_be_compared_is_not(root: Path, content: object) -> None:
    assert resume(root, state_after(root, 1) | {"content": content})["step"] == 2


def test_all_ranks_have_one_state(root: Path) -> None:
    states = [state_after(root, 1, shard={"rank": r, "world_size": 2}) for r in range(2)]
    assert states[0] == states[1]
    assert states[0]["history"][0]["world_size"] == 2


OWN = {"version": 2, "data": "d1", "pipeline": "p1", "epoch": 0, "position": 0, "seed": 5}
ENTRY = {"step": 0, "epoch": 0, "position": 0, "world_size": 1, "batch_size": 4}
STATE = OWN | {"step": 3, "skipped": [1, 2], "history": [ENTRY], "content": {}, "functions": {}}


def test_states_of_both_versions_are_taken() -> None:
    assert check_state(STATE, OWN, True) is STATE
    assert check_state(OWN | {"version": 1}, OWN, True)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "and not None"),
        ([1], "and not a list"),
        ({}, "that is empty: it lacks 'version'"),
        ({"weights": 1}, "that has 'weights': it lacks 'version'"),
        (STATE | {"seed": "5"}, "whose 'seed' is '5'"),
        (STATE | {"version": True}, "whose 'version' is True"),
        (STATE | {"version": 3}, "another version of gpupipe: 3, not 2"),
        (STATE | {"step": -1}, "whose 'step' is -1"),
        (STATE | {"skipped": [0, 1.5]}, "whose 'skipped' is"),
        (STATE | {"history": [{"step": 0}]}, "whose 'history' is"),
        (STATE | {"content": []}, "whose 'content' is"),
    ],
    ids=str,
)
def test_what_is_no_state_of_a_loader(state: Any, said: str) -> None:
    for strict in (False, True):
        with pytest.raises(StateError, match=said):
            check_state(state, OWN, strict)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "d2"}, r"other data .*: data d2 there, d1 here; strict=False"),
        ({"pipeline": "p2"}, r"another pipeline .*: pipeline p2 there, p1 here"),
        ({"batch": "b"}, r"another batch stage .*: batch b there, none here"),
    ],
)
def test_a_state_of_something_else_is_taken_only_if_the_user_says_so(
    changes: dict[str, str], said: str
) -> None:
    with pytest.raises(StateError, match=said):
        check_state(STATE | changes, OWN, True)
    assert check_state(STATE | changes, OWN, False) == STATE | changes


def write(forty: Path, count: int) -> None:
    for n in range(count):
        file = forty / "a" / f"{n:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"%d" % n * (1 + n % 3))


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    write(tmp_path, 40)
    return tmp_path


def index_of(forty: Path) -> Index:
    return Folder(root=forty).index()


def test_it_holds_sizes_of_all_few_rows_and_hashes_of_some(forty: Path) -> None:
    index = index_of(forty)
    sample = sample_content(index)
    assert sample["sizes"] == [file.stat().st_size for file in sorted((forty / "a").iterdir())]
    assert len(sample["hashes"]) == 20, "every second of 40: no more than 32"
    assert len(set(sample["hashes"])) == 20
    assert find_difference(sample, sample_content(index), index) == ""


def test_of_many_rows_every_rank_looks_at_the_same(tmp_path: Path) -> None:
    write(tmp_path, 3000)
    one, other = (sample_content(index_of(tmp_path)) for _ in range(2))
    assert one == other
    assert 700 < len(one["sizes"]) <= 1000
    assert len(one["hashes"]) <= 32


def test_a_difference_is_named_with_the_first_sample(forty: Path) -> None:
    index = index_of(forty)
    before = sample_content(index)
    (forty / "a" / "00003.jpg").write_bytes(b"longer than it was")
    said = find_difference(before, sample_content(index), index)
    assert "a/00003.jpg had 1 bytes, and has 18 now; of 40 samples that were compared, 1" in said


def test_other_content_of_the_same_size_is_seen_in_rows_that_are_hashed(
    forty: Path,
) -> None:
    index = index_of(forty)
    before = sample_content(index)
    (forty / "a" / "00000.jpg").write_bytes(b"x")
    (forty / "a" / "00004.jpg").write_bytes(b"xx")
    said = find_difference(before, sample_content(index), index)
    assert "a/00000.jpg has the size that it had, but other content; of 20 samples" in said
    assert said.endswith("2 differ")


def test_what_is_not_known_on_either_side_is_no_difference(forty: Path) -> None:
    index = index_of(forty)
    before = sample_content(index)
    (forty / "a" / "00000.jpg").unlink()
    now = sample_content(index)
    assert (now["sizes"][0], now["hashes"][0]) == (None, None)
    assert find_difference(before, now, index) == ""
    for odd in ({}, {"sizes": "many"}, {"sizes": [1]}):
        assert find_difference(odd, now, index) == ""
