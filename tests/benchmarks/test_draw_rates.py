"""The charts show the committed results, and each picture of a page has an alternative text."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\([^)]+\)|<img\b(?P<html>[^>]*)>")


def read_texts(path: Path) -> list[str]:
    """The texts of an SVG, in their order."""
    texts = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts]


def read_bars(path: Path) -> list[list[float]]:
    """The shapes of an SVG: the coordinates of each path."""
    paths = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")
    return [[float(n) for n in re.findall(r"-?\d+\.?\d*", path.get("d", ""))] for path in paths]


def test_the_charts_are_those_of_the_committed_results(tmp_path: Path) -> None:
    import draw_rates

    drawn = draw_rates.draw_all(tmp_path)
    assert len(drawn) == 2 * len(draw_rates.CHARTS)
    for path in drawn:
        committed = draw_rates.IMAGES / path.name
        assert read_texts(path) == read_texts(committed), "run python benchmarks/draw_rates.py"
        shapes = zip(read_bars(path), read_bars(committed), strict=True)
        assert all(new == pytest.approx(old, abs=0.5) for new, old in shapes), path.name
        assert path.name in "".join(page.read_text() for page in PAGES)
    texts = read_texts(tmp_path / "rates-light.svg")
    assert "8,938" in texts
    assert "gpupipe, engine: cpu" in texts


def test_each_picture_of_the_pages_has_an_alternative_text() -> None:
    found = [(page, match) for page in PAGES for match in PICTURE.finditer(page.read_text())]
    assert len(found) > 10
    for page, match in found:
        alt = match["alt"] or "".join(re.findall(r'\balt="([^"]*)"', match["html"] or ""))
        assert len(alt.split()) > 2, f"{page.name}: {match[0]} needs an alternative text"
