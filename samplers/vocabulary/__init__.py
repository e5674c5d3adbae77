"""Options, requests and answers, requirements of a graph. Options need Python alone. Imports: storage, core."""
