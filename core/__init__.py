"""Everybody's ground: errors, checks of options, counter-based random numbers, the cache of compiled loops, threads, locks. Imports: numpy and numba; nothing of ours."""
