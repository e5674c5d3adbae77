from collections.abc import Iterator

import pytest

from tests.ray_head import RayHead, start_ray_head


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """One real head node for all tests that connect to a cluster from outside."""
    with start_ray_head(num_cpus=4) as head:
        yield head
