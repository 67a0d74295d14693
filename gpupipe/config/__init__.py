"""Turns YAML and overrides into one checked, frozen Config.

A config has four parts: `data` names a source, `pipeline` lists steps, `batch` lists steps on whole
batches, and `loader` is a LoaderConfig. `read_config` applies overrides to the document of the YAML
file; `validation` checks the result and builds the Config. All mistakes are reported at once, each
with its file and line, or with its override. The loader, the engines and all folders above import
this folder by its name; it imports steps and sources through their contracts. Start reading in
read_config.py; the settings are in loader_config.py.
"""

from gpupipe.config.data_errors import build_index, locate_errors
from gpupipe.config.loader_config import AutoShard, LoaderConfig, Shard
from gpupipe.config.ray_config import RayConfig
from gpupipe.config.read_config import Override, read, read_with, to_plain_types
from gpupipe.config.validation import Config, list_batch_fields

__all__ = [
    "AutoShard",
    "Config",
    "LoaderConfig",
    "Override",
    "RayConfig",
    "Shard",
    "build_index",
    "list_batch_fields",
    "locate_errors",
    "read",
    "read_with",
    "to_plain_types",
]
