"""Options of samplers, messages to owners, and checks that a graph stores what a sampler needs. Options need no third-party package. Imports: storage, core."""
