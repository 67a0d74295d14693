"""The built-in sources, one per file: NAME.py holds `data: {source: NAME}`.

A source imports the contract (gpupipe.dataset.source), what sources share (gpupipe.dataset), and
parsers (gpupipe.formats), and no other source. Nothing imports a source by its module:
gpupipe.dataset.source.SOURCES does, by its name. The folder `fetch` downloads data sets, and
`hub` is what hf needs. Start reading in folder.py.
"""
