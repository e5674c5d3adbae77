"""Makes copies of partitions on a host's disk, and verifies the copies against their origin. Imports: storage.graph and what it imports."""
