"""Read YAML with line numbers, and report errors as file:line:column.

`document` reads YAML files, `field_types` holds the types of settings, `validation_errors` maps
pydantic's errors to lines of the YAML, and `builtin_configs` finds the shipped files. The pipeline
and the config import this folder. Start reading in document.py.
"""
