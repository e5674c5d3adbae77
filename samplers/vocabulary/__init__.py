"""Options, requests and replies, checks of what a graph stores. Options need no third-party package. Imports: storage, core."""
