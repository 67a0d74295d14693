"""Reads YAML with line numbers, and reports errors as file:line:column.

`yaml_files` finds a file and turns it into a Document; `document` is the data with the location of
each part; `interpolation` resolves ${...} in it. `field_types` holds the types of settings, and
`validation_errors` maps pydantic's errors to lines of the YAML. Any folder from dataset/ upwards
may import this one. Start reading in document.py.
"""
