"""RunConfig: all options of a run, read from the command line, recipes, Python or saved runs. Imports: options of every folder, core."""
