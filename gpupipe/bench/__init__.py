"""Measurements, and the tables, plots and reports of them.

    measure       times one loader (`gpupipe run`); `memory` and `machine` say what it ran on
    compare       runs contestants in turn, each in a process that `contestant` runs; `comparison`
                  holds the result with its verdict, `report` writes it with `plots` and `pictures`
    parity        compares the pixels of engines
    profile       times the parts of a loader, `training` what waits for it; `profile_report`
                  says what limits
    tune          searches settings among `candidates`
    plan          describes a config without reading a pixel
    grid          draws a batch, `gallery` what steps do to a photograph
    tables        the tables that several commands print

Only gpupipe.cli imports this folder, and gpupipe itself for `show`. Start reading in measure.py.
"""
