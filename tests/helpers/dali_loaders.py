"""Loaders whose DALI engine is made by hand."""

from gpupipe.config import Config
from gpupipe.engines.base import Job
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.loader import Loader
from gpupipe.loading.assembly import LoaderParts, create_sampler
from gpupipe.runtime.progress import ignore_progress


def load_on_dali(checked: Config, checks_jpegs: bool = False) -> Loader:
    """Load on the CPU back end of DALI, with or without the checks of JPEGs that a GPU has."""
    index = checked.source.index(ignore_progress)
    job = Job(index, checked.pipeline, checked.loader, 2)
    engine = DaliEngine(job, None, checks_jpegs=checks_jpegs)
    return Loader(LoaderParts(checked, index, create_sampler(checked, index), engine))
