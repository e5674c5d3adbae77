"""Options; requests and replies; checks that a graph stores what a sampler needs. Options need no third-party package. Imports: storage, core."""
