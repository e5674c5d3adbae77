"""A run as it is read, in any state: summary, epochs, verdict; trackers. Imports: cluster, samplers, storage, core."""
