"""Sweeps: many points of one experiment, shared out among processes, and finished in spite of what happens to them.

A sweep has a folder with its manifest: every point, composed and checked before anything runs. Workers, started by
whichever launcher Hydra was told to use, claim points from there one by one. What a point gave is in the store, or on
its way there (``zexp.tracking.spool``); so a sweep can be taken up again wherever it was left.
"""
