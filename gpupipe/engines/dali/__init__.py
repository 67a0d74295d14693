"""The DALI engine: plans become batches in one DALI pipeline, on a GPU or a CPU.

`reader` brings the bytes of files, `files` looks at them before the decoder does, `graph` builds
the pipeline from a config's steps, `image` and `array` are the primitives that steps are lowered
onto, and `engine` runs it all. The loader imports it by name. Begin to read in engine.py.
"""
