"""What DALI's operators make of the primitives that steps lower onto.

    Step.lower(tracer, p)     image.ImageTracer or array.ArrayTracer, both a tracer.DaliTracer
            |
            v
    operations of an image    fusion: neighbours become one
            |
            v
    subgraph.Subgraph         operators, and the arrays that they are fed
            |
            v
    DALI's operators          ops, color, color_functions, torch_functions, dtypes

`trial` runs the operator of a step dali on small images. The files of the DALI engine above import
this folder. Start reading in image.py.
"""
