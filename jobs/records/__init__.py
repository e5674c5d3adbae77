"""Reads runs in any state: their summary, epochs and verdict. Sends records of runs to trackers. Imports: cluster, samplers, storage, core."""
