"""The parts of a Loader: what it is made of, its life cycle, its state, and its warnings.

`life_cycle` is the state machine of epochs, `run_state` makes and checks the states of
state_dict(), `assembly` creates the sampler and the engine for a rank, or connects to servers in
place of both, and `ignored_settings` says which settings have no effect. The folder imports engines
and everything below them; gpupipe.loader imports it. Start reading in life_cycle.py.
"""
