"""A finished run as it is read: summary, epochs, verdict; trackers. Imports: cluster, samplers, storage, core."""
