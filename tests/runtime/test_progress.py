"""The progress bar of load(), in the kernel of a real notebook."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from gpupipe.runtime.progress import notebook_progress
from helpers import forked_python

_LONGEST = 600  # seconds


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    own = {
        "https_proxy": "http://127.0.0.1:1",  # so that drawn faces stand in for LFW
        "GPUPIPE_DATA": str(tmp_path_factory.mktemp("data")),
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
        "JUPYTER_RUNTIME_DIR": str(tmp_path_factory.mktemp("jupyter")),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python.executable())
        manager, client = start_new_kernel(startup_timeout=_LONGEST, env=os.environ | own)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(kernel: BlockingKernelClient, code: str) -> list[tuple[str, dict[str, Any]]]:
    """What a cell sends to the page: the type and the content of each message."""
    messages: list[tuple[str, dict[str, Any]]] = []
    reply = kernel.execute_interactive(
        code,
        timeout=_LONGEST,
        output_hook=lambda message: messages.append((message["msg_type"], message["content"])),
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return [message for message in messages if message[0] not in ("status", "execute_input")]


def pages(messages: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [content["data"]["text/html"] for kind, content in messages if "display" in kind]


def test_load_shows_a_bar_while_images_are_drawn(kernel: BlockingKernelClient) -> None:
    messages = run_cell(kernel, "import gpupipe; loader = gpupipe.load('lfw', device='cpu')")
    first, *following = [kind for kind, _ in messages if "display" in kind]
    assert (first, set(following)) == ("display_data", {"update_display_data"})
    *shown, last = pages(messages)
    assert all(page.startswith("<progress") for page in shown)
    assert any('max="2000"' in page and "of 2,000" in page for page in shown)
    assert last == "", "it disappears"
    printed = [content for kind, content in messages if kind == "stream"]
    assert {part["name"] for part in printed} == {"stderr"}
    text = "".join(part["text"] for part in printed)
    assert re.findall(r"\w*Warning", text) == ["StandInWarning"], text


def test_a_short_load_writes_nothing(kernel: BlockingKernelClient, faces: Path) -> None:
    code = f"""
import gpupipe
from gpupipe.runtime import progress as module
patience, module._PATIENCE = module._PATIENCE, {_LONGEST}
config = {{"data": {{"source": "folder", "root": {str(faces)!r}}}, "pipeline": "affine"}}
gpupipe.load(config, device="cpu", batch_size=4).close()
module._PATIENCE = patience
"""
    assert run_cell(kernel, code) == []


def test_a_bar_without_a_total_and_with_odd_names(kernel: BlockingKernelClient) -> None:
    code = f"""
import time
from gpupipe.runtime import progress as module
pause, module._PAUSE = module._PAUSE, {_LONGEST}
with module.notebook_progress() as progress:
    time.sleep(0.6)
    progress("reading <a&b>", 1234, None)
    progress("again, at once", 1235, None)
module._PAUSE = pause
"""
    assert pages(run_cell(kernel, code)) == [
        "<progress></progress> reading &lt;a&amp;b&gt; 1,234",
        "",
    ]


def test_a_bar_goes_when_the_load_fails(kernel: BlockingKernelClient) -> None:
    code = """
import time
from gpupipe.runtime.progress import notebook_progress
try:
    with notebook_progress() as progress:
        time.sleep(0.6)
        progress("reading", 1, 4)
        raise ValueError
except ValueError:
    pass
"""
    assert pages(run_cell(kernel, code)) == [
        '<progress value="1" max="4"></progress> reading 1 of 4',
        "",
    ]


def test_there_is_none_outside_of_a_notebook(
    faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with notebook_progress() as progress:
        progress("reading", 1, 2)
    assert capsys.readouterr() == ("", "")
