"""What is installed, the commands that install what is missing, and the compiled extensions."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.errors import DataError, EngineError, GpupipeError
from gpupipe.runtime import installation
from gpupipe.runtime.installation import (
    compute_crc32s,
    find_extension,
    has_opencv,
    install_command,
    rebuild_command,
    require_extra,
)

ROOT = Path(__file__).parents[2]
PRINT = """
import gpupipe.runtime.installation as copy
print(copy.install_command("server"), copy.rebuild_command(), sep="\\n")
"""
METADATA = """Metadata-Version: 2.4
Name: gpupipe-loader
Version: 0.1.0
Provides-Extra: server
Requires-Dist: torch>=2.11
Requires-Dist: pyzmq>=26; extra == "server"
Requires-Dist: nvidia-ml-py; sys_platform == "linux" and extra == 'server'
"""
AGAIN = "pip install --force-reinstall --no-deps --no-cache-dir"
COMMIT = "4b32e6084e6c5e606862077fe4726b3a8a4b88ad"
WHEEL = "gpupipe_loader-0.1.0-cp311-cp311-linux_x86_64.whl"


def copy_package(folder: Path) -> Path:
    """Put what the commands need of gpupipe into a folder."""
    for name in ("__init__.py", "errors.py", "runtime/__init__.py", "runtime/installation.py"):
        (folder / "gpupipe" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "gpupipe" / name, folder / "gpupipe" / name)
    return folder


def clone(folder: Path) -> Path:
    copy_package(folder)
    (folder / "setup.cfg").write_text("[metadata]\nname = gpupipe-loader\n")
    return folder


def install(site: Path, origin: dict[str, Any] | None = None) -> Path:
    """Write the metadata that an installer writes, with `origin` in direct_url.json."""
    info = site / "gpupipe_loader-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return site


def print_commands(*path: Path) -> list[str]:
    """Return the two commands that a Python with these folders on its path prints."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}{PRINT}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_folder_that_was_installed_editable(tmp_path: Path) -> None:
    folder = clone(tmp_path / "a clone")
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    site = install(tmp_path / "site", origin)
    expected = [f"pip install -e '{folder}[server]'", f"{AGAIN} -e '{folder}'"]
    assert print_commands(site, folder) == expected
    older = install(tmp_path / "older", {**origin, "url": tmp_path.as_uri()})
    assert print_commands(older, site, folder) == expected  # of two, the one that is imported


def test_a_folder_that_was_copied(tmp_path: Path) -> None:
    folder = clone(tmp_path / "a clone")
    site = install(copy_package(tmp_path / "site"), {"url": folder.as_uri(), "dir_info": {}})
    expected = [f"pip install '{folder}[server]'", f"{AGAIN} '{folder}'"]
    assert print_commands(site) == expected


def test_a_wheel(tmp_path: Path) -> None:
    """A wheel has no sources from which the extensions could be built."""
    wheel = tmp_path / WHEEL
    wheel.touch()
    site = install(copy_package(tmp_path / "site"), {"url": wheel.as_uri(), "archive_info": {}})
    in_a_clone = f"{AGAIN} . (in a clone of gpupipe)"
    assert print_commands(site) == [f"pip install '{wheel}[server]'", in_a_clone]
    wheel.unlink()
    assert print_commands(site) == ["pip install 'pyzmq>=26' nvidia-ml-py", in_a_clone]


@pytest.mark.parametrize(
    ("origin", "end"),
    [
        (
            {
                "url": "https://example.org/gpupipe.git",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"},
            },
            f" @ git+https://example.org/gpupipe.git@{COMMIT}",
        ),
        (
            {
                "url": "file:///home/a b/mono",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT},
                "subdirectory": "loader",
            },
            f" @ git+file:///home/a%20b/mono@{COMMIT}#subdirectory=loader",
        ),
        (
            {"url": "https://example.org/gpupipe.tar.gz", "archive_info": {}},
            " @ https://example.org/gpupipe.tar.gz",
        ),
    ],
    ids=["repository", "folder of a repository", "archive"],
)
def test_a_url(origin: dict[str, Any], end: str, tmp_path: Path) -> None:
    site = install(copy_package(tmp_path), origin)
    assert print_commands(site) == [
        f"pip install 'gpupipe-loader[server]{end}'",
        f"{AGAIN} 'gpupipe-loader{end}'",
    ]


def test_an_index(tmp_path: Path) -> None:
    assert print_commands(install(copy_package(tmp_path))) == [
        "pip install 'gpupipe-loader[server]'",
        f"{AGAIN} --no-binary gpupipe-loader gpupipe-loader",
    ]


def test_a_clone_on_the_path(tmp_path: Path) -> None:
    """Whatever else is installed, and whatever a build left in the clone."""
    folder = clone(tmp_path / "clone")
    (folder / "gpupipe_loader.egg-info").mkdir()
    (folder / "gpupipe_loader.egg-info" / "PKG-INFO").write_text(METADATA)
    other = install(copy_package(tmp_path / "site"))
    expected = [f"pip install -e '{folder}[server]'", f"{AGAIN} -e {folder}"]
    assert print_commands(folder) == print_commands(folder, other) == expected


def test_a_package_without_metadata_and_another_project_of_its_name(tmp_path: Path) -> None:
    copy_package(tmp_path)
    (tmp_path / "gpupipe-0.3.0.dist-info").mkdir()
    (tmp_path / "gpupipe-0.3.0.dist-info/METADATA").write_text(
        METADATA.replace("gpupipe-loader", "gpupipe")
    )
    assert print_commands(tmp_path) == [
        "pip install '.[server]' (in a clone of gpupipe)",
        f"{AGAIN} . (in a clone of gpupipe)",
    ]


def test_this_copy_is_a_clone() -> None:
    copy = installation.find_distribution()
    assert copy is None or copy.version == installation.own_version()
    assert installation.install_command("cpu") == shlex.join(
        ["pip", "install", "-e", f"{ROOT}[cpu]"]
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.15.0+cu132", (2, 15, 0)),
        ("2.4.0.dev20260101", (2, 4, 0)),
        ("580.65.06", (580, 65, 6)),
        ("none", ()),
    ],
)
def test_release(text, numbers):
    assert installation.parse_release(text) == numbers


def test_what_is_installed_is_no_error() -> None:
    require_extra("fetch", ("json", "os.path"), "a download")


def test_what_is_missing_is_named_with_what_to_run() -> None:
    with pytest.raises(GpupipeError) as raised:
        require_extra("fetch", ("json", "no_such_module"), "a download")
    assert str(raised.value) == (
        f"a download needs no_such_module, which is not installed: run {install_command('fetch')}"
    )
    with pytest.raises(DataError, match=r"needs no_such\.inner and no_such_module, which are not"):
        require_extra("fetch", ("no_such.inner", "no_such_module"), "a download", DataError)


def test_opencv_5_is_used() -> None:
    pytest.importorskip("cv2")
    assert has_opencv()


def test_an_older_one_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    monkeypatch.setattr(cv2, "__version__", "4.10.0")
    with pytest.warns(
        UserWarning,
        match=r"does not use OpenCV 4\.10\.0.*" + re.escape(install_command("cpu")),
    ):
        assert not has_opencv()


def test_without_it_there_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert not has_opencv()


@pytest.mark.parametrize("name", ["_kernels", "_jpeg", "_png"])
@pytest.mark.parametrize("abi", [None, 0, 1 << 30], ids=["none", "earlier", "later"])
def test_an_extension_of_another_version_is_not_used(
    name: str, abi: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPIPE_KERNELS", raising=False)
    extension = find_extension(name)  # type: ignore[arg-type]
    if extension is None:
        pytest.skip(f"gpupipe.{name} was not built")
    monkeypatch.delattr(extension, "ABI")
    if abi is not None:
        monkeypatch.setattr(extension, "ABI", abi, raising=False)
    with pytest.warns(UserWarning, match=f"gpupipe.{name} was built for another version"):
        assert find_extension(name) is None  # type: ignore[arg-type]
    monkeypatch.setenv("GPUPIPE_KERNELS", "on")
    with pytest.raises(EngineError, match=re.escape(rebuild_command())):
        find_extension(name)  # type: ignore[arg-type]


@pytest.fixture(
    params=[
        pytest.param(
            "extension",
            marks=pytest.mark.skipif(find_extension() is None, reason="it is not built"),
        ),
        "python",
    ],
)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(installation, "_find_kernels", lambda: None)


@pytest.mark.usefixtures("implementation")
def test_every_size_and_alignment_has_the_crc_of_zlib() -> None:
    data = np.random.default_rng(3).integers(0, 256, 70_000, np.uint8)
    buffers = [data[start : start + size] for size in range(300) for start in range(3)]
    buffers += [data, data[1:], data[:65_536], np.zeros(1000, np.uint8)]
    expected = [zlib.crc32(buffer.tobytes()) for buffer in buffers]
    assert compute_crc32s(buffers) == expected
    assert compute_crc32s([]) == []


def test_the_extension_for_checksums_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = []
    monkeypatch.setattr(installation, "find_extension", lambda: lookups.append(1))
    installation._find_kernels.cache_clear()
    try:
        assert [compute_crc32s([b"123456789"]) for _ in range(3)] == [[0xCBF43926]] * 3
    finally:
        installation._find_kernels.cache_clear()
    assert len(lookups) == 1


@pytest.mark.usefixtures("implementation")
def test_any_contiguous_buffer_is_taken() -> None:
    assert compute_crc32s([b"123456789", bytearray(b"123456789")]) == [0xCBF43926] * 2
    with pytest.raises((TypeError, ValueError)):
        compute_crc32s([b"1", np.zeros(8, np.uint8)[::2]])
    with pytest.raises(TypeError):
        compute_crc32s([b"1", "text"])
