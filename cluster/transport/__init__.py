"""Sends messages over persistent TCP connections that are authenticated by a token. Imports: samplers, core."""
