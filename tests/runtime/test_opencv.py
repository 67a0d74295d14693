"""Whether OpenCV is used."""

from __future__ import annotations

import re
import sys

import pytest

from gpupipe.runtime.installation import install_command
from gpupipe.runtime.opencv import has_opencv


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
