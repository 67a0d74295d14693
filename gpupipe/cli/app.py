"""The entry point of the command line.

Each command imports its modules when it is called, so that --help is fast.

Exit codes: 0 ok, 1 failure, 2 usage (a wrong option, or a mistake in a config), 130 interrupted
with Ctrl-C.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

import gpupipe
from gpupipe.cli import (
    cache,
    catalog,
    compare,
    convert,
    drawing,
    init,
    inspect,
    listing,
    profile,
    serve,
    trying,
)
from gpupipe.cli.arguments import (
    ConfigName,
    JsonFile,
    Overrides,
    PictureFile,
    options,
    write_json,
    writing,
)
from gpupipe.cli.console import Screen, console, leave_interrupted
from gpupipe.cli.group import CommandGroup, complete_help
from gpupipe.cli.printing import announce, say
from gpupipe.errors import GpupipeError, counted

if TYPE_CHECKING:
    from gpupipe.bench.measure import Measurement
    from gpupipe.config import Config
    from gpupipe.loader import Loader


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="gpupipe COMMAND --help explains one, with an example.",
)
@click.version_option(gpupipe.__version__, prog_name="gpupipe")
def main() -> None:
    """Image loading for PyTorch from one YAML file, on a GPU with DALI, or on CPU threads."""


@main.command()
@options
def run(
    config: ConfigName,
    overrides: Overrides,
    epochs: Annotated[
        int | None,
        click.IntRange(1),
        "Epochs in a measured pass; by default 1, or as many as pass what is made ahead.",
    ] = None,
    batches: Annotated[
        int | None, click.IntRange(1), "Batches in a measured pass, in place of whole epochs."
    ] = None,
    repeats: Annotated[
        int, click.IntRange(1), "Measured passes: what mean and deviation are taken over."
    ] = 3,
    json_path: JsonFile = None,
    show: Annotated[
        Path | None, PictureFile(), "Write the first batch, with labels, to this PNG."
    ] = None,
    quiet: Annotated[bool, "-q", "Print only the images per second."] = False,
) -> None:
    """Load CONFIG (a file, or a shipped name such as lfw) as training would, and measure it.

    KEY=VALUE changes a setting: batch_size=64, device=cpu, data.root=/images,
    pipeline=imagenet_train.
    """
    if not quiet:
        announce(f"reading {config}")
    from gpupipe import config as configs
    from gpupipe.bench import tables
    from gpupipe.bench.memory import PeakMemory

    checked = configs.read(config, overrides)
    with Screen(quiet) as screen, PeakMemory() as memory:
        loader, meter = screen.start(
            checked, lambda loader, batch: _show(loader, batch, show) if show else None
        )
        count = batches or (epochs or meter.epochs()) * len(loader)
        try:
            for n in range(repeats):
                meter.run(f"{n + 1}/{repeats}", count)
        except KeyboardInterrupt:
            meter.result.interrupted = True
        result = meter.finish(memory)
    if quiet and result.passes and not result.too_short:
        click.echo(f"{result.mean:.1f}")
    elif not quiet:
        console().print(tables.measurement_table(result))
        _print_skipped(loader, result)
    if json_path:
        write_json(json_path, result.as_json(loader))
    if result.interrupted:
        leave_interrupted()
    loader.close()
    if quiet and result.too_short:
        raise GpupipeError(f"images/s cannot be determined: {result.too_short}")


@main.command()
@options
def check(
    config: ConfigName,
    overrides: Overrides,
    files: Annotated[
        bool, "Look for all files that a list names, not for those of 1,000 rows."
    ] = False,
    annotations: Annotated[
        bool, "Read all annotations, count them and what is wrong with them, and do no more."
    ] = False,
    json_path: JsonFile = None,
) -> None:
    """Check CONFIG without reading a pixel, and print the plan: the steps, and how each device
    runs them.
    """
    announce(f"reading {config}")
    from gpupipe import config as configs
    from gpupipe.bench import plan, tables
    from gpupipe.loading.assembly import resolve
    from gpupipe.loading.ignored_settings import list_ignored_settings

    out = console()
    checked = configs.read(config, overrides)
    if annotations:
        _check_annotations(checked, json_path)
        return
    results = plan.describe_steps(checked)
    out.print(tables.steps_table(checked.pipeline))
    if checked.batch.entries:
        out.print(tables.batch_table(checked.batch))
    resolved = resolve(checked)
    if not resolved.reads_data:
        servers = " and ".join(checked.loader.server or ())
        say(f"made by the server at {servers}: 'gpupipe status' asks it how it goes")
        lines = iter(list_ignored_settings(checked, resolved.engine))
    else:
        operators = plan.operators(resolved)
        for device, rows in operators.items():
            out.print(tables.lowering_table(device, rows))
        results["operators"] = plan.describe_operators(operators)
        lines = plan.facts(resolved, look_at_all_files=files)
    results["facts"] = []
    for line in lines:
        say(line)
        results["facts"].append(line)
    write_json(json_path, results)


@main.command()
@options
def doctor(json_path: JsonFile = None) -> None:
    """Look at this machine: versions, extras, GPU, decoder, cores, memory, limits; what is wrong,
    and what to do.
    """
    announce("looking at this machine")
    from gpupipe.bench import tables
    from gpupipe.doctor.checks import run_checks

    results = run_checks()
    console().print(tables.check_results_table(results))
    write_json(json_path, [asdict(result) for result in results])
    if any(f.status == "problem" for f in results):
        sys.exit(1)


@main.command()
@click.argument("dataset")
@options
def fetch(
    dataset: str,
    root: Annotated[
        Path | None, "Where to put it.  [default: where the shipped configs look for it]"
    ] = None,
) -> None:
    """Download DATASET (lfw), check it and unpack it."""
    announce(f"fetching {dataset}")
    from gpupipe.runtime.files import expand_user
    from gpupipe.sources.helpers import dataset_catalog, download

    try:
        entry = dataset_catalog.DATASETS[dataset_catalog.check_name(dataset)]
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="DATASET") from None
    target = expand_user(root or dataset_catalog.get_default_root(dataset))
    if target.exists():
        say(f"{target} is there already")
        return
    with Screen(False) as screen:
        download.fetch(entry, target, screen.progress)
    say(f"{entry.title}: {target}")


def _check_annotations(config: "Config", json_path: Path | None) -> None:
    """Print the table of annotations, and end with status 1 if something is wrong with them."""
    from gpupipe.bench import tables
    from gpupipe.bench.annotation_checks import count_annotations

    rows = list(count_annotations(config))
    console().print(tables.annotations_table(rows))
    write_json(json_path, {"config": config.name, "annotations": [row._asdict() for row in rows]})
    if any(row.is_wrong and row.number for row in rows):
        sys.exit(1)


def _show(loader: "Loader", batch: Any, path: Path) -> None:
    from gpupipe.bench import grid

    with writing(path):
        grid.save(loader, batch, path)


def _print_skipped(loader: "Loader", result: "Measurement") -> None:
    from gpupipe.engines.bad_samples import QuarantiningEngine

    engine = loader.engine
    if result.skipped and isinstance(engine, QuarantiningEngine):
        say(
            f"{counted(result.skipped, 'sample')} left out; each is listed with its reason in "
            f"{engine.quarantine.file}"
        )


for _command in (
    *(compare.compare, compare.parity, profile.profile, profile.tune),
    drawing.gallery,
    inspect.inspect,
    listing.list_,
    listing.show,
    drawing.show_batch,
    catalog.completion,
    trying.try_,
    init.init,
    init.schema,
    convert.convert,
    cache.cache,
    serve.serve,
    serve.status,
    serve.keys,
):
    main.add_command(_command)
complete_help(main)
