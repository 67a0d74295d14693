"""The picture of each step, as `gpupipe gallery` draws it: a photograph, and eight draws of it."""

import io
from collections.abc import Iterator
from pathlib import Path

SIDE = 96
PHOTOGRAPH = Path(__file__).parents[1] / "images" / "cat.jpg"


def draw_all() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the JPEG of each step that has an example."""
    from gpupipe.bench.gallery import open_gallery
    from gpupipe.bench.gallery_page import draw_page

    with open_gallery(PHOTOGRAPH) as gallery:
        for name in list_drawn():
            stream = io.BytesIO()
            draw_page([gallery.draw_step(name)], SIDE).save(stream, "JPEG", quality=85)
            yield name, stream.getvalue()


def list_drawn() -> list[str]:
    """Return the names of the steps that can be drawn: those that need no numbers of one's own."""
    from gpupipe.pipeline.step_registry import STEPS

    found = []
    for name in sorted(STEPS.builtin_names):
        model = STEPS.find(name)
        required = any(field.is_required() for field in model.model_fields.values())
        if model.example or not required:
            found.append(name)
    return found
