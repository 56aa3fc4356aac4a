"""Steps that are left out, as they are written down."""

import subprocess
import sys

from training.run_folder import RunFolder
from training.skipped import skip_step, skipped_steps


def test_steps_add_up(tmp_path):
    folder = RunFolder(tmp_path, "run")
    assert skipped_steps(folder) == frozenset()
    skip_step(folder, 7)
    skip_step(folder, 3)
    skip_step(folder, 7)
    assert skipped_steps(folder) == {3, 7}
    assert skipped_steps(RunFolder(tmp_path, "other")) == frozenset()


def test_it_needs_no_torch():
    code = "import sys, training.skipped; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
