"""YAML documents that remember their lines, and errors that name them.

`document` reads them, `field_types` are the types of settings, `validation_errors` turn pydantic's
errors into file:line:column, `builtin_configs` finds the shipped files. The pipeline and the config
import it. Begin to read in document.py.
"""
