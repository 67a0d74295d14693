"""The data processing server: makes batches in its own process, for training processes on this
machine or others.

`service` owns the socket, `producer` makes batches, `leases` decides which client gets which batch
and takes its acknowledgement, `write_ahead_log` keeps both on disk. The command line and the
package's top level import this folder. Start reading in leases.py, whose head holds the rules of
the protocol, then service.py.
"""
