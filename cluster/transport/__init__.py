"""Messages over TCP connections that stay open, behind a token. Imports: samplers, core."""
