"""Threads at the end of their process."""

import subprocess
import sys
import textwrap


def test_a_thread_that_computes_ends_before_the_process_does() -> None:
    """Otherwise torch aborts the process, often but not each time."""
    asked = """
        import sys, time, torch
        from graphmill.core.daemon_threads import begin

        def compute():
            x = torch.ones(64, 64, requires_grad=True)
            while True:
                (x @ x).sum().backward()

        for number in range(4):
            begin(compute, f"test-{number}", computes=True)
        time.sleep(1.0)
        sys.exit(3)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(asked)], timeout=120).returncode == 3
