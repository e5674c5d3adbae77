"""This machine: devices, memory, environment. Imports: cluster, core."""
