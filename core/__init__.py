"""The base of all packages: errors, checks of options, counter-based random numbers, the cache of compiled loops, threads, locks.

Imports numpy and numba, but no other Graphmill package.
"""
