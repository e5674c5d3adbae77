"""Measurements for users: `graphmill bench speed | sampling | training | gpu`. Imports: jobs.plan and below."""
