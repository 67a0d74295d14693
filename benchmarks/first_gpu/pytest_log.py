"""A pytest plugin that writes each outcome to $GPUPIPE_TEST_LOG at once: a crash loses nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that $GPUPIPE_TESTS_DONE lists."""
    done = set(Path(os.environ["GPUPIPE_TESTS_DONE"]).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid, outcome="started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        error = report.when != "call" and report.outcome == "failed"
        outcome = "error" if error else report.outcome
        _write(test=report.nodeid, outcome=outcome, seconds=report.duration, text=_text(report))


def pytest_runtest_logfinish(nodeid: str) -> None:
    _write(test=nodeid, outcome="finished")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        outcome = "error" if report.outcome == "failed" else report.outcome
        _write(test=report.nodeid, outcome=outcome, seconds=0.0, text=_text(report))


def _text(report: Any) -> str:
    """Why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return report.longreprtext[-3000:]  # type: ignore[no-any-return]


def _write(**record: Any) -> None:
    with Path(os.environ["GPUPIPE_TEST_LOG"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
