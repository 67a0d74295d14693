"""SKILL.md and llms.txt: what the script makes of the pages, and nothing that does not exist."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from gpupipe.cli.app import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import agents

    monkeypatch.delitem(sys.modules, "agents")
    return agents


def test_skill_md_is_what_the_script_writes(agents: ModuleType) -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert text == agents.write_skill(), "run python docs/site/agents.py"
    head = yaml.safe_load(text.split("---\n")[1])
    assert head.keys() == {"name", "description"}
    assert text.count("\n") < 120, "it is read at every use"


def test_every_command_option_and_page_of_skill_md_exists() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"^ *`?gpupipe ([a-z][a-z-]*)|`gpupipe ([a-z][a-z-]*)", text, re.M))
    named = {name for pair in commands for name in pair if name}
    assert {"init", "check", "run", "tune"} <= named <= main.commands.keys()
    options = {option for c in main.commands.values() for p in c.params for option in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= options
    pages = re.findall(r"\]\(([^)]+)\)", text)
    assert len(pages) >= 10
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_llms_txt_lists_every_page_of_the_site(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# gpupipe\n\n> ")
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", text, re.M)
    made = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    own = {page for page in made if not page.startswith("repository/")} - {"404.html"}
    assert set(listed) == own
