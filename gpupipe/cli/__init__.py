"""The commands: the only place that prints.

One module a group of commands; `app` is the entry point, `console` and `output_files` are shared.
Nothing imports this folder. Begin to read in app.py.
"""
