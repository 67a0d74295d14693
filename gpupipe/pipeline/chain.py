"""Checks each step of a list against the output of the one before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem, nearest, shown
from gpupipe.pipeline.entry import Entry, make_key
from gpupipe.pipeline.parsing import ParsedStep
from gpupipe.pipeline.step import Step, StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime import plugins


def chain_steps(
    parsed: Sequence[ParsedStep[Step]], fields: Mapping[str, Spec], problems: list[Problem]
) -> list[Entry]:
    """Check each step against the output of the one before it.

    A step that does not fit is a problem; the next one is checked as if it were not there.
    """
    entries: list[Entry] = []
    seen = Counter[str]()
    specs = {
        name: _spec_before_steps(name, spec, parsed, problems) for name, spec in fields.items()
    }
    for p in parsed:
        outcomes = [
            _make_entry(p, name, input_spec, parsed, problems)
            for name in p.on
            if (input_spec := specs[name]) is not None
        ]
        seen[p.name] += any(isinstance(o, Entry) for o in outcomes)
        key = make_key(p.name, seen[p.name])
        for name, o in zip([n for n in p.on if specs[n] is not None], outcomes, strict=True):
            if isinstance(o, Entry):
                entries.append(replace(o, key=key))
                specs[name] = o.output_spec
            else:
                specs[name] = o and replace(o, kind=fields[name].kind)
    return entries


def _make_entry(
    p: ParsedStep[Step],
    name: str,
    input_spec: Spec,
    parsed: Sequence[ParsedStep[Step]],
    problems: list[Problem],
) -> Entry | Spec | None:
    """Return a step's entry on one field.

    If the step is invalid or does not fit, return the spec with which checking goes on; None if
    that cannot be guessed.
    """
    if p.step is None:
        return _guess_output(p.name, input_spec)
    step = p.step.adapt_to_mask() if input_spec.kind == "mask" else p.step
    try:
        with plugins.blamed(p.name, type(step), p.where, "infer_spec()", StepIncompatibleError):
            step = step.resolve(input_spec)
            output = _check_spec(step.infer_spec(input_spec))
        output = replace(output, kind=input_spec.kind)
        return Entry(p.name, p.name, step, p.where, input_spec, output, name)
    except StepIncompatibleError as e:
        later = (
            next((q.name for q in parsed if name in q.on and _decodes(q)), None)
            if input_spec.encoded
            else None
        )
        why = f"what reaches it are still encoded bytes: move it after '{later}'" if later else e
        of = f" on {name}" if len(p.on) > 1 else ""
        problems.append(Problem(e.where or p.where, f"{p.name} cannot stand here{of}: {why}"))
        return input_spec


def _spec_before_steps(
    name: str, spec: Spec, parsed: Sequence[ParsedStep[Step]], problems: list[Problem]
) -> Spec | None:
    """Return the spec before the first step on a field.

    If no step decodes the field, report that once, and not for every step that needs pixels.
    """
    if not spec.encoded or any(name in p.on and (p.step is None or _decodes(p)) for p in parsed):
        return spec
    main = all(name in p.on for p in parsed)
    write = (
        "'- decode' as the first step"
        if main
        else f"'- decode: {{on: {name}}}' before the steps on it"
    )
    problems.append(Problem(parsed[0].where, f"no step decodes the {name}: write {write}"))
    return replace(Spec.of_image(None), kind=spec.kind)


def _check_spec(made: object) -> Spec:
    """Return what a step's infer_spec() returned; raise TypeError if it is no Spec."""
    if not isinstance(made, Spec):
        raise TypeError(f"it must return a Spec, and not {shown(made)}")
    return made


def _decodes(p: ParsedStep[Step]) -> bool:
    """Return whether a step turns encoded bytes into pixels."""
    if p.step is None:
        return False
    try:
        with plugins.blamed(p.name, type(p.step), p.where, "infer_spec()", StepIncompatibleError):
            return not _check_spec(p.step.infer_spec(Spec())).encoded
    except StepIncompatibleError:
        return False


def _guess_output(name: str, spec: Spec) -> Spec | None:
    """Guess the output of an invalid step, so that later steps are not blamed for it.

    Returns None if there is no guess. An unknown name is taken for the nearest known one.
    """
    names = STEPS.names()
    meant = name if name in names else nearest(name, names)
    if meant not in STEPS.builtin_names:
        return None
    output = STEPS.find(meant).guess_spec(spec)
    return spec if spec.encoded and output is not None and not output.layout else output
