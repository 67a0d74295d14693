"""The command line, the only place that prints.

Each module holds a group of commands. `app` is the entry point; `console` and `output_files` hold
what the commands share; `catalog` and `parameters` what `list` and `show` print. Nothing imports
this folder. Start reading in app.py.
"""
