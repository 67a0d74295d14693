"""What a stage throws while it runs without the GIL becomes an exception of Python."""

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def throwing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module of throwing.cpp, which makes stages that throw."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    library = tmp_path_factory.mktemp("throwing") / "throwing.so"
    folders = [sysconfig.get_path("include"), str(ROOT / "native")]
    options = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    source = str(Path(__file__).with_name("throwing.cpp"))
    command = [compiler, *options, *(f"-I{folder}" for folder in folders), source, "-o"]
    subprocess.run([*command, str(library)], check=True)
    spec = importlib.util.spec_from_file_location("throwing", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (0, MemoryError, "^$"),
        (1, RuntimeError, "a vector is too long"),
        (2, RuntimeError, "no std::exception"),
    ],
)
def test_what_a_stage_throws_is_an_exception_of_python(
    throwing: Any, kind: int, error: type[Exception], message: str
) -> None:
    one = [0], [bytes(1)]
    with pytest.raises(error, match=message):
        kernels.run_program(kernels.program((throwing.stage(3), throwing.stage(kind))), *one)
    assert kernels.run_program(throwing.stage(3), *one) == []


def test_what_arguments_throw_is_an_exception_of_python(throwing: Any) -> None:
    assert throwing.run_each(()) == []
    with pytest.raises(MemoryError):
        throwing.run_each((1, 2))
