"""The options of each model, frozen dataclasses that need Python alone. Imports: core.option_checks."""
