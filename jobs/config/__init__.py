"""RunConfig: all options of a run, read from the command line, recipes, Python and saved runs. Imports: options of every folder, core."""
