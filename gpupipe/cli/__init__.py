"""The command line, the only place that prints.

Each module holds a group of commands. `app` is the entry point. `console` and `arguments` hold what
the commands share, `completion` what a shell completes, `parameters` what `show` prints of a
setting. Nothing imports this folder. Start reading in app.py.
"""
