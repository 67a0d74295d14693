"""The contract of a source."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpupipe.dataset.source import Source
from gpupipe.dataset.spec import Spec
from gpupipe.sources.folder import Folder


def test_a_source_without_an_index_cannot_be_made() -> None:
    class Nothing(Source):
        """Says not which samples there are."""

    with pytest.raises(TypeError, match=r"abstract.*index"):
        Nothing.model_validate({})


def test_the_yaml_says_which_fields_are_masks(tmp_path: Path) -> None:
    assert Folder(root=tmp_path).field_specs() == {"image": Spec()}
    masked = Folder(root=tmp_path, masks=("image", "no_field")).field_specs()
    assert masked == {"image": replace(Spec(), kind="mask")}
