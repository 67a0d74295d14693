"""Steps of other packages: their mistakes are reported as those of built-in ones."""

from pathlib import Path

import pydantic
import pytest

from gpupipe.schema import yaml_files
from helpers.pipeline_texts import NORM, mistakes
from helpers.plugin import install

MODULE = '''
from gpupipe.pipeline.step import Spec, Step, StepIncompatibleError


class Shout(Step):
    """A step of a plugin.

    words: what to say.
    """

    words: tuple[int, int, int]

    def infer_spec(self, given: Spec) -> Spec:
        raise StepIncompatibleError("it is too loud: whisper")
'''


def test_a_plugins_step_gets_the_same_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "shouting", MODULE, shout="Shout"))
    assert mistakes("decode", "shuot: {words: [1, 2, 3]}") == [
        "2:3: unknown step 'shuot'; did you mean 'shout'?"
    ]
    assert mistakes("decode", "shout") == [
        "2:3: shout.words: missing; write 'words: ...' (what to say)"
    ]
    assert mistakes("decode", "shout: {words: 3}") == [
        "2:18: shout.words is 3, but should be a list"
    ]
    assert mistakes("decode", "shout: {words: [1, 2]}") == [
        "2:18: shout.words is [1, 2], but should be a longer list"
    ]
    assert mistakes("decode", "shout: {words: [1, 2, 3, 4]}") == [
        "2:18: shout.words is [1, 2, 3, 4], but should be a list of at most 3"
    ]
    assert mistakes("decode", "shout: {words: [1, 2, 3]}") == [
        "2:3: shout cannot stand here: it is too loud: whisper"
    ]
    assert mistakes("decode", "shout: {words: 3}", NORM) == [
        "2:18: shout.words is 3, but should be a list"
    ], "what it would have made is not known"


def test_the_kinds_of_pydantic_errors_that_no_step_has_yet_are_still_readable() -> None:
    class Odd(pydantic.BaseModel):
        when: pydantic.AwareDatetime | None = None
        one: pydantic.PositiveInt = 1

    from gpupipe.schema.validation_errors import to_problems

    document = yaml_files.parse("when: soon\none: -1\n", "p")
    with pytest.raises(pydantic.ValidationError) as error:
        Odd.model_validate(document.data)
    said = [str(p) for p in to_problems(error.value, Odd, document)]
    assert said[0].startswith("p:1:7: when is 'soon', but should be a valid datetime or date")
    assert said[1] == "p:2:6: one is -1, but should be above 0"
