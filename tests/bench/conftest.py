"""gpupipe as a user calls it, and a report."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.bench import parity, report
from gpupipe.config import Config
from helpers import forked_python
from helpers.made_comparison import RATES, measured


@pytest.fixture
def cli() -> Any:
    """Runs the command in a folder; words and environment as given."""

    def run_command(
        folder: Path, *words: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = ["-m", "gpupipe", *words]
        return forked_python.run(command, cwd=folder, env=os.environ | environment)

    return run_command


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Path:
    """A file with the pipeline `affine`, for the faces."""
    file = tmp_path / "config.yaml"
    loader = "loader: {batch_size: 16, device: cpu}"
    file.write_text(f"data: {{source: folder, root: {faces}}}\npipeline: affine\n{loader}\n")
    return file


@pytest.fixture(scope="session")
def report_config(faces: Path) -> Config:
    return configs.read(
        {
            "data": {"source": "folder", "root": str(faces)},
            "pipeline": "affine",
            "loader": {"batch_size": 16, "device": "cpu"},
        }
    )


@pytest.fixture(scope="session")
def report_agreements(report_config: Config) -> list[parity.Agreement]:
    return list(parity.measure(report_config, report_config.source.index(), ["cpu"], 4))


@pytest.fixture(scope="session")
def report_folder(
    report_config: Config,
    report_agreements: list[parity.Agreement],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A report. The same device twice, since it is laid out as two are: the CPU and a GPU."""
    folder = tmp_path_factory.mktemp("report") / "deep" / "er"
    assert (
        report.write(
            folder,
            measured(RATES),
            report_agreements,
            report_config,
            report_config.source.index(),
            ["cpu", "cpu"],
        )
        == folder / "report.html"
    )
    return folder
