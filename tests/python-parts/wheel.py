"""Packs the Python package with a program that is built already, and installs it: wheel.py FOLDER PIPESIM.

FOLDER gets the wheel, laid out as maturin lays it out, and a fresh virtual environment `installed` with it. So the suite checks what
pip installs without building the program twice.
"""

import base64
import hashlib
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METADATA = "Metadata-Version: 2.4\nName: pipesim\nVersion: {version}\nRequires-Python: >=3.9\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: pipesim\nRoot-Is-Purelib: false\nTag: {tag}\n"


def packed(program: Path, folder: Path) -> Path:
    """Writes the wheel into `folder`."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    files = {f"pipesim/{path.name}": path.read_bytes() for path in sorted((ROOT / "python/pipesim").glob("*")) if path.is_file()}
    files[f"pipesim-{version}.data/scripts/pipesim"] = program.read_bytes()
    information = f"pipesim-{version}.dist-info"
    files[f"{information}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{information}/WHEEL"] = WHEEL.format(tag=tag).encode()
    sums = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for name, data in files.items()}
    record = [f"{name},sha256={sums[name]},{len(data)}" for name, data in files.items()] + [f"{information}/RECORD,,"]
    files[f"{information}/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = folder / f"pipesim-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


def main() -> None:
    folder, program = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = packed(program, folder)
    venv.create(folder / "installed", clear=True, with_pip=True)
    pip = [folder / "installed/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    print(f"installed {wheel.name}, {wheel.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
