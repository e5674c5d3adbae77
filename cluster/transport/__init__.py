"""Messages over persistent TCP connections, authenticated by a token. Imports: samplers, core."""
