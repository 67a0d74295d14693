"""Decoders of image files: bytes of one image in, pixels out.

`decoder` is the contract. Engines and steps call `chain`, which tries the decoders in order and
applies the rules that all of them share. `builtin/` has one decoder per file. `image_header` parses
the headers of files. This folder imports only gpupipe.runtime and gpupipe.errors.
Start reading in chain.py.
"""
