"""Measures loaders and engines, and builds the tables, plots and reports of the results.

    measure       times one loader (`gpupipe run`)
    memory        measures the peak memory; `machine` describes the machine and its load
    compare       runs contestants in turn, each in a process of its own (`contestant`)
    comparison    holds the results of `compare` and describes them in sentences; `report` writes
                  them as HTML, with `plots` and `pictures`
    parity        compares the pixels of engines
    profile       times the parts of a loader, and `training` a training step on its batches;
                  `profile_report` finds the resource that limits the loader
    tune          searches the fastest settings; `candidates` lists the values that it tries
    plan          describes a config without reading a pixel
    grid          draws a batch; `gallery` draws the effect of steps on a photograph
    tables        builds the tables of the commands

Only gpupipe.cli imports this folder, and gpupipe itself for `show`. Start reading in measure.py.
"""
