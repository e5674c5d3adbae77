"""Defines the file formats of a snapshot: manifests, Arrow files, feature rows, encodings, splits. Imports: storage.filesystem, core."""
