"""Looks at a folder of data, and writes a config that reads it: `gpupipe init`.

`detect` chooses the source. It detects class folders itself, and calls a module for each other kind
of data: `detected` (masks), `lists`, `tables`, `arrays`, `shards`, `stores`. `survey` reads the
index and some headers, and returns counts, sizes, classes and doubts. `config_text` writes the
YAML. The command line imports this folder. This folder uses sources through their contract.
Start reading in detect.py.
"""
