"""Where a data set is, and what stands in for it where it cannot be fetched."""

import subprocess
from pathlib import Path

import pytest

from gpupipe.errors import DataError, FetchError
from gpupipe.sources.helpers import dataset_catalog
from gpupipe.sources.helpers.dataset_catalog import describe_absence, describe_note, locate
from helpers import forked_python
from helpers.served_archives import FILES, WANTED, Server, tar_of, tree


def test_a_root_that_is_there_is_used_as_it_is(offered: Server, tmp_path: Path) -> None:
    assert locate(tmp_path, "lfw", 10) == tmp_path
    assert describe_note(tmp_path) == ""
    assert offered.asked == 0
    assert describe_absence(tmp_path, "lfw", 10) == ""


def test_locate_fetches(offered: Server, tmp_path: Path) -> None:
    assert "fetches it, or makes 10 stand-in images" in describe_absence(
        tmp_path / "lfw", "lfw", 10
    )
    assert locate(tmp_path / "lfw", "lfw", 10) == tmp_path / "lfw"
    assert tree(tmp_path) == {f"lfw/{name}": data for name, data in WANTED.items()}
    assert describe_absence(tmp_path / "lfw", "lfw", 10) == ""


def test_locate_makes_a_stand_in_where_nothing_can_be_fetched(
    offered: Server, tmp_path: Path
) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    said: list[str] = []
    place = locate(tmp_path / "lfw", "lfw", 3, lambda what, done, total: said.append(what))
    assert place == tmp_path / "lfw-stand-in-3"
    assert describe_note(place) == "stand-in data, not LFW"
    assert len(list(place.glob("*/*.jpg"))) == 3
    assert not (tmp_path / "lfw").exists(), "a stand-in is never taken for the data"
    assert any("HTTP 404" in s and "making a stand-in" in s for s in said), said
    assert offered.asked == 1
    assert locate(tmp_path / "lfw", "lfw", 3) == place
    assert describe_absence(tmp_path / "lfw", "lfw", 3) == ""
    assert offered.asked == 1, "no download is tried again"


def test_another_number_of_stand_ins_tries_the_network_again(
    offered: Server, tmp_path: Path
) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    locate(tmp_path / "lfw", "lfw", 2)
    offered.offer(tar_of(FILES))
    assert locate(tmp_path / "lfw", "lfw", 3) == tmp_path / "lfw"


def test_the_data_wins_over_a_stand_in(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    locate(tmp_path / "lfw", "lfw", 2)
    (tmp_path / "lfw").mkdir()
    assert locate(tmp_path / "lfw", "lfw", 2) == tmp_path / "lfw"


def test_a_stand_in_used_as_root_says_so(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    made = locate(tmp_path / "lfw", "lfw", 2)
    assert locate(made, None, None) == made
    assert describe_note(made) == "stand-in data, not LFW"


def test_without_a_stand_in_the_failure_is_the_answer(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    with pytest.raises(FetchError, match="HTTP 404"):
        locate(tmp_path / "lfw", "lfw", None)
    assert list(tmp_path.iterdir()) == []


def test_nothing_there_and_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path / 'mine'}: no such folder.*data.root"):
        locate(tmp_path / "mine", None, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_url_is_refused_and_not_made(
    offered: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="is a path, and no URL: write /missing"):
        locate(Path("file:///missing"), "lfw", 10)
    assert list(tmp_path.iterdir()) == []


def test_a_stand_in_that_cannot_be_written(offered: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="lfw-stand-in-2 cannot be written: Not a directory"):
        locate(tmp_path / "file" / "lfw", "lfw", 2)


LOCATE = """
from pathlib import Path
from gpupipe.sources.helpers import dataset_catalog as datasets
datasets.DATASETS["lfw"] = datasets.Dataset("lfw", "", sys.argv[1], "0" * 64)
print(datasets.locate(Path(sys.argv[2]), "lfw", 60))
"""


def test_processes_that_need_a_stand_in_at_once_make_one(server: Server, tmp_path: Path) -> None:
    python = forked_python.executable()
    arguments = [python, "-c", LOCATE, server.url("nowhere.tar"), str(tmp_path / "lfw")]
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = {p.communicate(timeout=60) for p in processes}
    assert outputs == {(f"{tmp_path / 'lfw-stand-in-60'}\n", "")}
    assert server.asked == 1
    assert [p.name for p in tmp_path.iterdir()] == ["lfw-stand-in-60"]
    assert len(list(tmp_path.glob("*/*/*.jpg"))) == 60


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert dataset_catalog.check_name("lfw") == "lfw"
    with pytest.raises(ValueError, match="unknown data set 'lwf'; did you mean 'lfw'"):
        dataset_catalog.check_name("lwf")
