"""The parts of a Loader: what it is made of, its life cycle, its state, and its warnings.

`life_cycle` is the state machine of epochs, `resume` checks the state of load_state_dict(),
`assembly` creates the sampler and the engine for a rank, `ignored_settings` says which settings
have no effect, and `notebook_progress` shows a bar in a notebook. The folder imports engines and
everything below them; gpupipe.loader imports it. Start reading in life_cycle.py.
"""
