"""jobs/products_geco.py with workers whose calls get lost: `python -m tests.lossy_job <options of the job>`.

Ray's own fault injection, in the workers' processes alone: of their calls to actors (where a partition's server is, the barrier of
`ray.train.report`), one in a hundred is not sent, one is done but not answered, and of one both sides learn nothing. Ray Train's own calls
to its workers are left whole, since its start waits for them without a bound.
"""

import json
import runpy
import sys
from pathlib import Path

import ray.train

LOSSES = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": 1,
        "resp_failure_prob": 1,
        "in_flight_failure_prob": 1,
    }
}
JOB = Path(__file__).resolve().parents[1] / "jobs" / "products_geco.py"


def main() -> None:
    made = ray.train.RunConfig.__post_init__

    def lossy(self: ray.train.RunConfig) -> None:
        made(self)
        self.worker_runtime_env = {"env_vars": {"RAY_testing_rpc_failure": json.dumps(LOSSES)}}

    ray.train.RunConfig.__post_init__ = lossy  # type: ignore[method-assign]
    sys.argv[0] = str(JOB)
    runpy.run_path(str(JOB), run_name="__main__")


if __name__ == "__main__":
    main()
