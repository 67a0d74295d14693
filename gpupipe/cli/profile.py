"""The commands `gpupipe profile` and `gpupipe tune`.

`gpupipe profile` shows where the time of a config goes. `gpupipe tune` searches for its fastest
loader settings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from gpupipe.cli.arguments import ConfigName, JsonFile, OutputFile, Overrides, options, write_json
from gpupipe.cli.console import (
    Screen,
    console,
    core_numbers,
    leave_interrupted,
    leave_out_decoded_cache,
    print_data_warning,
    read,
)
from gpupipe.cli.printing import announce, say
from gpupipe.errors import EngineError, counted, did_you_mean

if TYPE_CHECKING:
    from gpupipe.bench.training import Train
    from gpupipe.loader import Loader


@click.command()
@options
def profile(
    config: ConfigName,
    overrides: Overrides,
    repeats: Annotated[int, click.IntRange(1), "How often each part of the work is timed."] = 3,
    repeat_seconds: Annotated[float, click.FloatRange(0.01), "How long each repeat takes."] = 1.0,
    step_ms: Annotated[
        float | None,
        click.FloatRange(0),
        "Also train: with steps of so many milliseconds, in which the CPU has nothing to do.",
    ] = None,
    model: Annotated[
        str | None, "Also train: a model of torchvision, such as resnet18, on the loader's device."
    ] = None,
    trace_path: Annotated[
        Path | None,
        "--trace",
        OutputFile(),
        "Also record a trace for ui.perfetto.dev or chrome://tracing: each batch, and training.",
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Show where the time of CONFIG goes, step by step, what limits it, and what to change."""
    announce(f"reading {config}")
    from gpupipe.bench import profile as profiling
    from gpupipe.bench import profile_report, training
    from gpupipe.bench.compare import disturbance
    from gpupipe.bench.tables import describe_work
    from gpupipe.runtime.ranks import cores

    if step_ms is not None and model:
        raise click.UsageError("--step-ms and --model are two kinds of training step: give one")
    train = _train(step_ms, model)
    checked, index = read(config, overrides)
    checked = leave_out_decoded_cache(checked)
    with Screen(False) as screen:
        result = profiling.measure(
            checked, index, cores(), repeats, repeat_seconds, screen.counter("profile")
        )
        trained = train and training.measure(
            checked, index, *train, repeats, repeat_seconds, screen.counter("training")
        )
    ceiling = None if trained else training.ceiling(checked, index, repeat_seconds)
    say(describe_work(result.what))
    console().print(profile_report.profile_table(result))
    for line in profile_report.describe_training(trained, ceiling):
        say(line)
    if trace_path is not None:
        trace = training.record_training(checked, index, train and train[1], repeat_seconds)
        write_json(trace_path, trace)
        steps = counted(trace["otherData"]["steps"], "step")
        say(f"A trace of {steps} is in {trace_path}: open it at https://ui.perfetto.dev.")
    step_advice = {e.key: e.step.speed_advice for e in checked.pipeline.entries}
    verdict = profile_report.find_limit(result, result.what["parallelism"], trained, step_advice)
    for sentence in (*verdict.sentences, *disturbance(result.disturbed)):
        say(sentence)
    more = {"replay_images_per_second": ceiling, "limit": verdict.resource}
    write_json(json_path, result.as_json() | {"training": trained and trained.as_json()} | more)


def _train(
    step_ms: float | None, model: str | None
) -> "tuple[str, Callable[[Loader], Train]] | None":
    """Return the training step's name, and a function that creates it for a loader.

    Returns None if neither option was given. Raises EngineError if torchvision has no such model.
    """
    from gpupipe.bench import training

    if model:
        return model, training.model(model)
    return None if step_ms is None else (f"steps of {step_ms:g} ms", training.pause(step_ms))


@click.command()
@options
def tune(
    config: ConfigName,
    overrides: Overrides,
    seconds: Annotated[float, click.FloatRange(1), "Time to use, about."] = 180.0,
    keep: Annotated[
        tuple[str, ...],
        "SETTING",
        "A setting not to change, such as batch_size. May be given several times.",
    ] = (),
    json_path: JsonFile = None,
) -> None:
    """Search the fastest loader settings for CONFIG on this machine, and print the YAML to use."""
    announce(f"reading {config}")
    from gpupipe.bench.candidates import find_cache_candidate, list_candidates
    from gpupipe.bench.compare import disturbance
    from gpupipe.bench.contestant import Contest
    from gpupipe.bench.tables import trials_table
    from gpupipe.bench.tune import Tuner, describe_tuning
    from gpupipe.decoded_cache.location import own_shared_memory
    from gpupipe.loading.assembly import resolve
    from gpupipe.runtime.devices import resolve as resolve_device
    from gpupipe.runtime.ranks import cores

    checked, index = read(config, overrides)
    print_data_warning(index)
    resolved = resolve(checked)
    if not resolved.reads_data:
        raise EngineError(
            "what there is to tune is the server's: 'gpupipe tune' the same config where "
            "it runs, without engine: remote"
        )
    gpu = resolve_device(checked.loader.device) is not None
    cache = find_cache_candidate(resolved, index, gpu)
    tunable = list_candidates(checked.loader, resolved.engine, gpu, cores(), cache)
    for name in keep:
        if name not in tunable:
            raise click.BadParameter(
                f"'{name}' is not among what is tuned{did_you_mean(name, tunable)}",
                param_hint="--keep",
            )
    choices = {name: values for name, values in tunable.items() if name not in keep}
    contest = Contest(config, overrides, {}, core_numbers(None), 0, 2, False)
    with Screen(False) as screen, own_shared_memory():
        result = Tuner(
            contest,
            checked.loader,
            cores(),
            seconds,
            screen.counter("tune"),
            fill_samples=cache.samples if cache else 0,
        ).run(choices)
    if result.trials:
        console().print(trials_table(result))
    for line in (
        *describe_tuning(result, checked.loader.batch_size),
        *disturbance(result.disturbed),
    ):
        say(line)
    write_json(json_path, result.as_json())
    if result.interrupted:
        leave_interrupted()
