"""A run as it is decided before anything starts; checks of options that need the data. Imports: jobs.tasks and its floor."""
