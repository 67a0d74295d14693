"""The built-in sources, one per file: NAME.py holds `data: {source: NAME}`.

A source imports the contract (gpupipe.dataset.source), shared code (gpupipe.dataset) and parsers
(gpupipe.formats), but no other source. Other code never imports the module of a source: it finds
the source by name, in gpupipe.dataset.source.SOURCES. The folder `helpers` downloads data sets for
the source folder, and reads files of Hugging Face for the source hf. Start reading in folder.py.
"""
