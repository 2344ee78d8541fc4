"""What the checks share: the package, and the program by itself."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIPESIM = os.environ["PIPESIM"] = str(Path(sys.argv.pop(1)).resolve())
if os.environ.get("PIPESIM_INSTALLED"):
    del os.environ["PIPESIM"]  # the package finds its own program
else:
    sys.path.insert(0, str(ROOT / "python"))

import pipesim as ps  # noqa: E402


def native(*args):
    return subprocess.run([PIPESIM, *args], capture_output=True, text=True, check=False)


def each(function, values):
    """Returns what a function that waits for the program gives for each value, in order."""
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        return list(threads.map(function, values))
