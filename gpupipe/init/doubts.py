"""Says what in a survey hints that the data was not read as it was meant."""

from __future__ import annotations

from collections.abc import Iterator

from gpupipe.init.detected import Detected
from gpupipe.init.names import TRAIN, name_some
from gpupipe.init.survey import Survey


def iter_doubts(part: str, detected: Detected, found: Survey) -> Iterator[str]:
    """Yield what is not certain about data that was looked at, one sentence each.

    Validation data may have few samples of few classes.
    """
    yield from detected.notes
    yield from found.doubts
    if found.has_labels and part == TRAIN:
        no_labels = "leave out labels" if "files" in detected.options else "write 'label: null'"
        yield from _iter_label_doubts(found, no_labels)


def _iter_label_doubts(found: Survey, no_labels: str) -> Iterator[str]:
    used = found.used_labels
    gaps = sorted(set(range(len(found.classes))) - set(used))
    if len(used) == 1:
        name = found.classes[used[0]]
        yield (
            f"all samples are of one class, '{name}'; if that is wrong, {no_labels} under data, or "
            "name the folder or column that has the classes."
        )
    elif len(used) == found.count:
        yield (
            f"there are as many classes as samples ({found.count:,}), so the labels may be names "
            f"of samples; for no labels {no_labels} under data."
        )
    if gaps:
        yield (
            f"no sample has the label {name_some(map(str, gaps))}, though labels go up to "
            f"{used[-1]}: a model needs {len(found.classes):,} outputs, unless the labels are "
            "numbered anew, from 0 without gaps."
        )
