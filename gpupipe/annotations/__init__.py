"""Boxes, points and the values that go with them, as a batch has them.

`ragged` is the type of their values in a batch. gpupipe/pipeline/annotations.py has what a step
sees and changes, and gpupipe/dataset/annotation_columns.py what an index stores. The folder imports
pipeline, sampling and dataset; engines and the loader import it. Start reading in ragged.py.
"""
