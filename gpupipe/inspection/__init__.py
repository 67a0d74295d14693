"""Looks at a data set before training, for `gpupipe inspect`.

    examine       reads one image file: its header, statistics, a hash of its bytes and one of its
                  pixels
    scan          examines all files of a data set on all cores; saves the results part by part
    faults        finds what is wrong with single files and annotations
    duplicates    finds equal and nearly equal images, also between two data sets
    statistics    counts sizes, formats and classes; mean and standard deviation by channel
    findings      joins all of these, also as JSON; `report` writes the page

Only gpupipe.cli imports this folder. Start reading in scan.py.
"""
