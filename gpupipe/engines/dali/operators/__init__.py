"""Turns the primitives that steps call into DALI operators.

    Step.lower(tracer, p)     image.ImageTracer or array.ArrayTracer, both a tracer.DaliTracer
            |
            v
    operations of an image    fusion: neighbours become one
            |
            v
    subgraph.Subgraph         operators, and the arrays to feed to them
            |
            v
    DALI's operators          ops, color, image_functions, remap, dtypes

`trial` runs the operator of a step on small images. The DALI engine, one folder up, imports
this folder. Start reading in image.py.
"""
