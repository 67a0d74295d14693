"""What mkdocs calls while it builds the site: adds the pages that are made from the code, and makes
links to files of the repository lead to copies of them.
"""

import functools
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents
import measurements
import reference_cli
import reference_models
import repository_files
import step_pictures
from mkdocs.structure.files import File, Files

_ASSETS = Path(__file__).with_name("assets")
_PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": reference_cli.write_page,
    "reference/settings.md": reference_models.write_settings,
    "reference/steps.md": reference_models.write_steps,
    "reference/measurements.md": measurements.write_page,
    **{
        uri: functools.partial(repository_files.copy_as_page, path)
        for path, uri in repository_files.OWN_PAGES.items()
    },
}
"""The generated pages, and what returns their Markdown."""


def on_startup(**_: Any) -> None:
    """Keep what gpupipe logs out of mkdocs' warnings, which end a strict build."""
    logging.getLogger("gpupipe").propagate = False


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the generated pages, their pictures, and the files of the repository that pages name."""
    for path in sorted(_ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{path.name}", abs_src_path=str(path)))
    for uri, write in _PAGES.items():
        files.append(File.generated(config, uri, content=write()))
    files.append(File.generated(config, "llms.txt", content=agents.write_llms()))
    for name, content in step_pictures.draw_all():
        files.append(File.generated(config, f"reference/steps/{name}.jpg", content=content))
    for uri, content in repository_files.copy_linked(files, measurements.SOURCES):
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to the copies, and fill in the figures of the front page."""
    text = markdown.replace(measurements.PLACE, measurements.write_summary())
    text = text.replace(measurements.PLACE_OF_PEERS, measurements.write_peers())
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return repository_files.include_files(
        repository_files.lead_links(text, page.file.src_uri), folder
    )


def on_post_template(output: str, template_name: str, config: Any, **_: Any) -> str:
    """Lead the addresses of the page for errors to its folder, unless the site's address is known.

    mkdocs writes them from the root of the server, and the site may lie in a folder of it.
    """
    if template_name != "404.html" or config.site_url:
        return output
    return re.sub(r'((?:href|src|"base":\s*)=?")/(?!/)', r"\1./", output)
