"""What a user measures: `graphmill bench speed | sampling | training | gpu`. Imports: jobs.plan and below."""
