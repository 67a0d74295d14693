"""Reads YAML with line numbers, and reports errors as file:line:column.

`yaml_parser` turns a file into a Document; `document` is the data with the location of each part;
`interpolation` resolves ${...} in it. `field_types` holds the types of settings,
`validation_errors` maps pydantic's errors to lines of the YAML, and `builtin_configs` finds the
shipped files. Any folder from dataset/ upwards may import this one. Start reading in document.py.
"""
