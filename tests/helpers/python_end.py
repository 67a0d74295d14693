"""An end for programs that run in helpers/forked_python.py and leave objects open."""

END = """
import ctypes

ctypes.pythonapi.Py_Exit(0)
"""
"""Ends as a Python ends: it frees the objects of all modules, which a forked process leaves out."""
