"""The parts of a Loader, its life cycle, its state, and its warnings.

`life_cycle` is the state machine of epochs. `run_state` makes and checks the states of
state_dict(), which hold sizes and hashes of some samples. `assembly` creates the sampler and the
engine for a rank, or connects to servers in place of both. `sample_selection` chooses the samples
of an epoch, and `ignored_settings` finds settings that have no effect. The folder imports engines
and everything below them; gpupipe.loader imports it. Start reading in life_cycle.py.
"""
