"""Reads runs in any state: summary, epochs, verdict; trackers. Imports: cluster, samplers, storage, core."""
