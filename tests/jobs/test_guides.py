"""The guides' code, run as it is printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.ray
def test_a_model_of_one_s_own_is_a_job(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "guides" / "your_model.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    job = tmp_path / "my_sage.py"
    job.write_text(code)
    options = ["--nodes", "2000", "--epochs", "12", "--workers", "1", "--object-store-gb", "0.2", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, str(job), *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    # 0: it beats the majority class and the classifier that sees features only.
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["beats_baselines"]
    assert (tmp_path / "run" / "report.html").exists()
