"""The DALI engine: one DALI pipeline turns plans into batches, on a GPU or a CPU.

`reader` reads image files ahead, and `files` checks their headers before DALI decodes them.
`graph` builds the pipeline from the steps of a config. `image` and `array` are the primitives that
steps call. `engine` runs the pipeline. The loader imports this package by name. Start reading in
engine.py.
"""
