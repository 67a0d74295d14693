"""What DALI's operators make of the primitives that steps lower onto.

`image` and `array` implement the primitives; both derive from `node`, which shares out the samples
of a batch and derives from `emitter`. `ops` holds DALI's operators, `color_functions` those of the
table of colours, and `numbers` conversions. `trial` runs the operator of a step dali on small
images. The files of the DALI engine above import this folder. Start reading in image.py.
"""
