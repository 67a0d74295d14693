"""What all tests share: a cache of their own, the photographs, drawn faces, and the rule for tests
that need a GPU.
"""

import gc
import itertools
import multiprocessing
import os
import re
import signal
import sys
import types
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpupipe.runtime.progress import ignore_progress
from gpupipe.sources.helpers.dataset_catalog import make_stand_in
from helpers import forked_python, photographs

_GPU = Path(__file__).with_name("gpu")
_SLOW = {
    *("test_site", "test_code_blocks", "test_workers", "test_fuzz_images", "test_fuzz"),
    *("test_fuzz_extensions", "test_compare", "test_corpus", "test_first_gpu", "test_exit"),
    *("test_cached_population", "test_examples", "test_lightning_scripts", "test_ranks"),
}
"""Files with tests of ten seconds and more."""
_NUMBERS = itertools.count()
_NEEDS_GPU = "needs an NVIDIA GPU: run `make test`, or `pytest -m gpu`, on a machine that has one"

# pytest-timeout reads this when it is configured. As an option in pyproject.toml it would be an
# error where the plugin is not installed.
os.environ.setdefault("PYTEST_TIMEOUT", "300")

# torch's OpenMP threads spin when they wait. Several test processes share the cores, so that took
# two fifths of the CPU time of tests that transform images. libgomp reads it when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Albumentations asks the package index for a newer release when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

# A fork server that tests start has imported this before it forks: 3 seconds of CPU time a worker.
multiprocessing.set_forkserver_preload(["gpupipe.engines.dataloader.samples"])

# A shell starts background jobs with Ctrl-C ignored, and a child process inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # on a GPU machine
    pass
else:  # beside other load, data may take seconds
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no fixture of a wider scope than a test, touches ~/.cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUPIPE_CACHE", str(tmp_path_factory.mktemp("session-cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_stack_traces_of_operators() -> Iterator[None]:
    """DALI's graphs are built in half of the time."""
    try:
        from helpers import dali_traces
    except ModuleNotFoundError:  # without DALI
        yield
        return
    with dali_traces.turned_off():
        yield


def _make_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Number a new folder by counting. pytest reads the names of all folders there are: with two a
    test, that took 20 s of CPU time in each worker.
    """
    folder = factory.getbasetemp() / f"{re.sub(r'[^a-zA-Z0-9]', '_', name)[:30]}-{next(_NUMBERS)}"
    folder.mkdir(0o700)
    return folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for one test, in place of pytest's fixture."""
    return _make_folder(tmp_path_factory, request.node.name)


@pytest.fixture(autouse=True)
def cache(
    _cache_of_the_session: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The cache folder of one test, empty when it begins."""
    folder = _make_folder(tmp_path_factory, "cache")
    monkeypatch.setenv("GPUPIPE_CACHE", str(folder))
    return folder


@pytest.fixture
def forked_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test process starts as sys.executable is a fork of a Python that has imported torch.

    The process that it starts passes most signals on to the fork, but not SIGSTOP.
    """
    monkeypatch.setattr(sys, "executable", forked_python.executable())


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """What multiprocessing spawns is such a fork, and so is a fork server that the test starts."""
    multiprocessing.set_executable(forked_python.executable())
    yield
    multiprocessing.set_executable(sys.executable)


@pytest.fixture(scope="session")
def photos() -> Path:
    """Real photographs, a folder a class: $GPUPIPE_PHOTOS, else those of helpers/photographs.py."""
    if folder := os.environ.get("GPUPIPE_PHOTOS"):
        return _present(Path(folder))
    try:
        return photographs.find_or_write() / "photos"
    except FileNotFoundError as error:
        pytest.skip(f"needs real photographs, and {error}: install it, or set GPUPIPE_PHOTOS")


@pytest.fixture(scope="session")
def orientation_photos(photos: Path) -> Path:
    """One photograph under every EXIF orientation: the folder `orientation` beside the
    photographs.
    """
    return _present(photos.with_name("orientation"))


def _present(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"needs real photographs, and there is no {folder}: see GPUPIPE_PHOTOS")
    return folder


@pytest.fixture(scope="session")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 drawn faces of 250x250 in class folders: what stands in for LFW."""
    root = tmp_path_factory.mktemp("faces") / "faces"
    make_stand_in(root, 60, ignore_progress)
    return root


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector away from what is imported and collected: a quarter of a million
    objects, which took a tenth of a second at each `gc.collect()` of a test, and a fifth of the
    time of the collection.
    """
    gc.disable()
    _compile_share(session.config)
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _compile_share(config: pytest.Config) -> None:
    """Have each worker of a whole run compile some of the test files: all of them collect at the
    same time, so each would compile all, for 8 s of CPU time. What imports nothing is not run.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    hook = config.pluginmanager.rewrite_hook
    if count == 1 or sys.dont_write_bytecode or config.args_source != config.ArgsSource.TESTPATHS:
        return
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[worker::count]:
        module = types.ModuleType(path.stem)
        module.__spec__ = hook.find_spec(path.stem, [str(path.parent)])
        module.__dict__["__builtins__"] = {}  # its first line is an import
        with suppress(ImportError, SyntaxError):  # the collection reports what is no Python
            hook.exec_module(module)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m gpu` collects tests/gpu alone: the other folders import packages that it does not
    need.
    """
    elsewhere = config.option.markexpr == "gpu" and collection_path != _GPU.parent
    return True if elsewhere and not collection_path.is_relative_to(_GPU) else None


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files of slow tests first, so that no worker ends long after the others. Mark the tests
    in tests/gpu, and skip them where there is no GPU; but those of either device are ordinary tests
    there.
    """
    items.sort(key=lambda item: item.path.stem not in _SLOW)
    marked = [item for item in items if item.path.is_relative_to(_GPU)]
    if not marked:
        return
    import torch

    has_gpu = torch.cuda.is_available()
    for item in marked:
        if not has_gpu and item.get_closest_marker("either_device"):
            continue
        item.add_marker(pytest.mark.gpu)
        if not has_gpu:
            item.add_marker(pytest.mark.skip(reason=_NEEDS_GPU))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Print as the last line what was skipped, and how to get it: each reason says that."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (skipped := reporter.stats.get("skipped")):
        reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        texts = [f"{count} {reason}" for reason, count in reasons.most_common()]
        reporter.write_line(f"skipped: {'; '.join(texts)}")
    return result


@pytest.fixture(scope="module")
def forked_in_module() -> Iterator[None]:
    """The code under test forks where it starts sys.executable; see helpers/forked_python.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python.executable())
        yield
