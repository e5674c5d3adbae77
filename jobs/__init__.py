"""Commands, one file each, over the rooms of this folder."""
