"""The functions of the user's that the steps of a pipeline call."""

from gpupipe.errors import warn
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.user_functions import UserCall


def list_calls(pipeline: Pipeline) -> list[UserCall]:
    """Return the functions, in the order of the steps."""
    return [call for entry in pipeline.entries for call in entry.step.list_calls()]


def explain_nameless(pipeline: Pipeline) -> str:
    """Return why no other process finds a function of the pipeline; "" if it finds all of them."""
    nameless = next((call for call in list_calls(pipeline) if not call.is_named), None)
    if nameless is None:
        return ""
    where = f"{nameless.where}: " if nameless.where else ""
    return (
        f"{where}{nameless.name} is an object of this process, and other processes import "
        "functions by name: define it in a module, and write python: {call: 'module:function'}"
    )


def hash_functions(pipeline: Pipeline) -> dict[str, str]:
    """Return hashes of the texts of the functions, by name, for the states of a loader."""
    found = {call.name: call.hash_text() for call in list_calls(pipeline)}
    return {name: text for name, text in found.items() if text}


def warn_of_changes(before: object, now: dict[str, str]) -> None:
    """Warn of functions whose texts are others than in a saved state.

    Args:
        before: What `hash_functions` returned when the state was saved.
        now: What it returns now.
    """
    saved = before if isinstance(before, dict) else {}
    for name in sorted(name for name in now if saved.get(name, now[name]) != now[name]):
        warn(
            f"the text of {name} has changed since the state was saved: if it computes something "
            "else now, so do the runs before and after the resume",
            UserWarning,
        )
