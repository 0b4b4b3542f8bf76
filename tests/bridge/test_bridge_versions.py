"""The bridge runs on the versions that it declares, and does not start on others that would break it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.bridge import versions
from holdfast.bridge.versions import TESTED, check_versions
from holdfast.faults import HoldfastError

WHOLE = [SimpleNamespace(**dict.fromkeys(names)) for names in (versions._WEBSOCKET, versions._HTTP)]


def installed(**found):
    """Return what says which versions are installed: these, and good ones of the others."""
    return ({package: f"{low}.1" for package, (low, _) in TESTED.items()} | found).__getitem__


def test_XB10_the_package_declares_the_versions_that_are_tested():
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    declared = dict(
        re.match(r"([a-z]+)(.*)", each).groups() for each in document["project"]["optional-dependencies"]["server"]
    )
    assert {package: declared[package] for package in TESTED} == {
        package: f">={oldest},<{first}" for package, (oldest, first) in TESTED.items()
    }


@pytest.mark.parametrize("found", ["0.40.0", "0.52.0", "0.52.1rc1"])
def test_XB10_a_version_that_is_too_old_is_named_with_the_command_that_helps(found):
    with pytest.raises(
        HoldfastError, match=rf"uvicorn {re.escape(found)} is too old.*pip install .*uvicorn>=0.53"
    ) as caught:
        check_versions(*WHOLE, installed=installed(uvicorn=found))
    assert caught.value.fault.code == "CONFIG_INVALID"


def test_XB10_a_newer_version_that_has_all_parts_starts_with_a_warning(caplog):
    check_versions(*WHOLE, installed=installed(uvicorn="1.2.0"))
    assert "not tested with uvicorn 1.2.0" in caplog.text


def test_XB10_a_version_that_lacks_a_part_does_not_start(caplog):
    websocket, http = WHOLE
    changed = SimpleNamespace(**{name: None for name in vars(websocket) if name != "read_paused"})
    with pytest.raises(HoldfastError, match="WebSocket protocol has no read_paused"):
        check_versions(changed, http, installed=installed(uvicorn="1.2.0"))


def test_XB10_a_package_without_a_record_is_judged_by_its_parts():
    def unknown(package):
        raise PackageNotFoundError(package)

    check_versions(*WHOLE, installed=unknown)


def test_XB10_every_part_that_is_checked_is_used():
    source = "".join(
        (Path(versions.__file__).parent / "http" / name).read_text(encoding="utf-8")
        for name in ("port.py", "listener.py")
    )
    for name in (*versions._WEBSOCKET, *versions._HTTP):
        assert re.search(rf"\b{name}\b", source), f"{name} is checked and not used"
