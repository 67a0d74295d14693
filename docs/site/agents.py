"""Writes llms.txt and SKILL.md from the pages and the commands.

    python docs/site/agents.py  # writes SKILL.md

The site's llms.txt lists its pages for language models (https://llmstxt.org). SKILL.md, in the root
of the repository, tells a coding agent how to use gpupipe. tests/docs/test_agents.py fails if it is
not what this script writes.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DOCS = ROOT / "docs"
_DESCRIPTIONS = {
    "reference/settings.md": "The keys of a config: type, default and meaning of each.",
    "reference/steps.md": "The steps: YAML, picture, and each parameter.",
    "reference/cli.md": "The commands and their options.",
    "reference/measurements.md": "The results, with script and machine of each.",
    "reference/api.md": "The functions and classes, with their arguments.",
    "faq.md": "Questions and answers.",
    "limits.md": "What gpupipe does not do.",
    "changelog.md": "What each version changed.",
    "security.md": "What is promised, and how to report a weakness.",
}
"""Of pages that the site makes, and of those without prose at their beginning."""
_COMMANDS = ("init", "check", "run", "show-batch", "list", "show", "compare", "parity", "tune")
_PAGES = (
    *("configuration.md", "sources.md", "training.md", "howto/resume.md", "howto/corrupt.md"),
    *("detection.md", "from_dataloader.md", "comparing.md", "limits.md", "faq.md"),
)


_WIDTH = 100
_NO_PROSE = ("#", "```", "|", "![", "<", "- ")
"""How paragraphs begin that are not prose."""
_HEAD = """\
---
name: gpupipe
description: Load images and arrays into PyTorch training with gpupipe. Write and check its YAML
  config, measure it, resume it. Use it when a project imports gpupipe, or needs a faster,
  reproducible or resumable image loader.
---"""
_ADVICE = """\
`KEY=VALUE` after the config changes a setting, such as `batch_size=64`. Begin with
`gpupipe init FOLDER`. Run `gpupipe check CONFIG` after each change, and correct what it names: it
has file, line and column, and what to write. Steps have the names and parameters of
torchvision.transforms.v2, in snake_case. `gpupipe show NAME` prints those of a step, a source or a
setting. Do not guess keys: unknown ones are errors."""


def write_llms() -> str:
    """Return llms.txt, with the pages as they are in the site."""
    lines = [f"# gpupipe\n\n> {_read_summary()}"]
    for section, pages in _read_navigation():
        lines.append(f"\n## {section}\n")
        for title, page in pages:
            address = page.removesuffix(".md") + ".html"
            lines.append(f"- [{title}]({address}): {_describe(page)}")
    return "\n".join(lines) + "\n"


def write_skill() -> str:
    """Return SKILL.md, with the pages as they are in the repository."""
    pages = "\n".join(_wrap(f"- [{page}](docs/{page}): {_describe(page)}") for page in _PAGES)
    parts = [
        _HEAD,
        f"# gpupipe\n\n{textwrap.fill(_read_summary(), _WIDTH)}",
        "## Install\n\n" + _find_block("index.md", "pip install", "    "),
        "## Use\n\n" + _find_block("index.md", "import gpupipe", "```python"),
        f"A config:\n\n```yaml\n{(ROOT / 'configs' / 'lfw.yaml').read_text(encoding='utf-8')}```",
        "## Commands\n\n" + "\n".join(_list_commands()),
        _ADVICE,
        f"## Pages\n\n{pages}",
    ]
    return "\n\n".join(parts) + "\n"


def _read_summary() -> str:
    paragraphs = (_DOCS / "index.md").read_text(encoding="utf-8").split("\n\n")
    prose = [text for text in paragraphs if not text.startswith(_NO_PROSE)]
    return " ".join(" ".join(prose[:2]).split())


def _read_navigation() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the title of each part of the navigation, with (title, page) of its pages."""
    text = (_DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    parts: list[tuple[str, list[tuple[str, str]]]] = [("Start", [])]
    for line in text.splitlines():
        match = re.fullmatch(r'( *)- "?(.*?)"?:(?: (\S+))?', line)
        assert match, line
        indent, title, page = match.groups()
        if page is None:
            parts.append((title, []))
        else:
            parts[-1 if len(indent) > 2 else 0][1].append((title, page))
    yield from parts


def _describe(page: str) -> str:
    """Return the first sentence of a page."""
    if page in _DESCRIPTIONS:
        return _DESCRIPTIONS[page]
    text = re.sub(r"<!--.*?-->", "", (_DOCS / page).read_text(encoding="utf-8"), flags=re.S)
    paragraphs = (part for part in text.split("\n\n") if not part.strip().startswith(_NO_PROSE))
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(next(paragraphs, page).split()))
    return re.split(r"(?<=\.)\s", plain)[0]


def _find_block(page: str, words: str, kind: str) -> str:
    """Return the first block of code of a page that has `words`: indented, or with a fence."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    pattern = r"(?:^    .*\n)+" if kind == "    " else rf"^{kind}\n.*?^```$"
    blocks = re.findall(pattern, text, re.M | re.S if kind != "    " else re.M)
    return next(block for block in blocks if words in block).strip("\n")


def _list_commands() -> Iterator[str]:
    from gpupipe.cli.app import main

    for name in _COMMANDS:
        text = " ".join((main.commands[name].help or "").split("\n\n")[0].split())
        yield _wrap(f"- `gpupipe {name}`: {text}")


def _wrap(item: str) -> str:
    """Return an item of a list on lines of at most 100 columns."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(item, _WIDTH, subsequent_indent="  ", **options)


if __name__ == "__main__":
    (ROOT / "SKILL.md").write_text(write_skill(), encoding="utf-8")
