"""Has the options of each model as frozen dataclasses that need only Python. Imports: core.option_checks."""
