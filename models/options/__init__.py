"""The options of each model, frozen dataclasses that need Python alone. Imports: nothing of ours."""
