"""Failures of extensions: packages that are installed beside us for a moment, and do not fit."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from holdfast import Fault, Runtime
from holdfast.extensions import Extensions

__all__ = ["left_out"]


def left_out(**fields: object) -> Fault:
    """Return why an extension that says this of itself is left out."""
    about = {"id": "guest", "contract": 1, **fields}
    lines = [*(f"{name} = {value!r}" for name, value in about.items()), "def start(runtime): raise OSError('no token')"]
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "guest-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[holdfast.rules]\nguest = faults_guest\n", encoding="utf-8")
        (Path(folder) / "faults_guest.py").write_text("\n".join(lines), encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            with Extensions(runtime=Runtime()) as extensions:
                (skipped,) = extensions.skipped
        finally:
            sys.path.remove(folder)
            sys.modules.pop("faults_guest", None)
    return skipped.fault
