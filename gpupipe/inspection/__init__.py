"""Looks at a data set before training, for `gpupipe inspect`.

    examine       reads image files: header, statistics, a hash of the bytes and one of the pixels
    perceptual_hash   computes that of the pixels
    scan          examines all files of a data set on all cores; saves the results part by part
    faults        finds what is wrong with single files and annotations
    duplicates    finds equal and nearly equal images, also between two data sets
    statistics    counts sizes, formats and classes; mean and standard deviation by channel
    findings      joins all of these, also as JSON; `report` writes the page

Only gpupipe.cli imports this folder. Start reading in scan.py.
"""
