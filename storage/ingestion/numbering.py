"""Assigns stored ids to the nodes of a type. The ids in each partition are consecutive, and are in the order of the source's rows."""

from dataclasses import dataclass

import numpy as np

from graphmill.storage.partitioning.partitioners import Assignment


@dataclass(frozen=True)
class Numbering:
    """Maps between the stored ids and the source rows of all nodes of one type."""

    offsets: np.ndarray  # int64 [num_partitions + 1]: partition p owns the ids [offsets[p], offsets[p + 1])
    id_of_row: np.ndarray  # int32 [num_nodes] if ids fit, else int64
    row_of_id: np.ndarray  # int32 or int64 [num_nodes], like id_of_row
    group_of_row: np.ndarray | None = None  # int32 [num_nodes], locality group of each row; None: no groups
    num_groups: int = 0

    @classmethod
    def of(cls, assigned: Assignment, num_partitions: int) -> "Numbering":
        # Imported here because numba is slow to import.
        from graphmill.storage.external_sort.bucket_kernels import renumber

        num_nodes = len(assigned.partition)
        counts = np.bincount(assigned.partition, minlength=num_partitions)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        dtype = np.int32 if num_nodes < 2**31 else np.int64
        id_of_row, row_of_id = (np.empty(num_nodes, dtype) for _ in range(2))
        renumber(assigned.partition, offsets[:-1].copy(), id_of_row, row_of_id)
        return cls(offsets, id_of_row, row_of_id, assigned.group, assigned.num_groups)

    @property
    def num_nodes(self) -> int:
        return len(self.id_of_row)

    @property
    def num_partitions(self) -> int:
        return len(self.offsets) - 1

    def num_owned(self, partition: int) -> int:
        return int(self.offsets[partition + 1] - self.offsets[partition])

    def rows(self, partition: int) -> np.ndarray:
        """Returns the source rows of a partition's nodes (int64, ascending)."""
        return self.row_of_id[self.offsets[partition] : self.offsets[partition + 1]].astype(np.int64)
