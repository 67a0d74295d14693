"""What a server in a process of its own is given."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.server.start import ServerProcess, start_server


def test_a_config_that_is_checked_already_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(gpupipe.ServerError, match="its path, its name or a dict"):
        ServerProcess(configs.read(config))


@pytest.mark.usefixtures("forked_executable")
def test_paths_and_mappings_of_a_config_reach_the_process(
    config: dict[str, Any], tmp_path: Path
) -> None:
    data = MappingProxyType(config["data"] | {"root": Path(config["data"]["root"])})
    state = tmp_path / "state"
    server = start_server(config | {"data": data}, port=0, state=state)
    assert server is not None
    with server:
        with gpupipe.connect(server.address, device="cpu") as loader:
            assert len(loader.index) == 23
        assert state.exists()
        server.close()
        server.close()
    assert state.read_text().endswith('["stopped"]\n'), "it ended by itself"
