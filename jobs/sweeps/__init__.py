"""Sweeps: trials, search, scaling, and their tables. Imports: jobs.plan and below."""
