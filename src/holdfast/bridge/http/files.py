"""`/files`: the files of the project, to be read and never to be written.

Invariant: what is read lies inside of the root, by its real path, and is a plain file or a folder. Each part of the path is opened without
following links, so that nothing can be put in its place between the check and the reading. What is hidden does not exist.
"""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.bridge.http.responses import rejected
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HIDDEN", "FileEntry", "Folder", "ProjectFiles"]

HIDDEN: Final = (
    *(".env", ".env.*", "*.env", ".envrc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".git", ".git-credentials", ".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".kube", ".docker"),
    *(".netrc", "_netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg"),
    *("credentials", "credentials.*", "*credentials.json", "client_secret*.json", "service-account*.json"),
    *("secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", "*.tfstate", "*.tfstate.*", "*.tfvars"),
    *("*.db", "*.db-*", "*.sqlite", "*.sqlite-*", "*.sqlite3", "*.sqlite3-*"),
)
"""Names that are never shown: keys, settings with secrets, databases with sessions."""
_MOST_ENTRIES = 5_000
_MOST_BYTES = 10 << 20


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a folder."""

    name: str
    kind: Literal["file", "folder"]
    size: int = 0


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds, in the order of names."""

    path: str
    entries: list[FileEntry]
    has_more: bool = False


class ProjectFiles:
    """The files below a root: `ProjectFiles(Path("project")).read("src/main.py")`. The calls block; make them in a thread."""

    def __init__(self, root: Path, *, hidden: tuple[str, ...] = HIDDEN, most_bytes: int = _MOST_BYTES) -> None:
        self._root = root.resolve()
        self._hidden = hidden
        self._most_bytes = most_bytes

    def read(self, path: str) -> bytes | Folder:
        """Return the content of a file, or what a folder holds. Raises a 404 for everything else, and a 413 for a large file."""
        parts = self._parts(path)
        try:
            file = self._open(parts)
        except OSError as error:
            raise _missing(path) from error
        try:
            found = os.fstat(file)
            if stat.S_ISDIR(found.st_mode):
                return self._folder(file, "/".join(parts))
            if not stat.S_ISREG(found.st_mode):
                raise _missing(path)
            if found.st_size > self._most_bytes:
                raise rejected(413, f"'{parts[-1]}' has more than {self._most_bytes} bytes", "PROTO_MESSAGE_TOO_LARGE")
            return _masked(self._content(file))
        finally:
            os.close(file)

    def _parts(self, path: str) -> tuple[str, ...]:
        """Return the parts of the real path below the root."""
        wanted = PurePosixPath(path)
        if "\0" in path or "\\" in path or wanted.is_absolute() or ".." in wanted.parts or len(path) > 4_096:
            raise _missing(path)
        try:
            real = (self._root / wanted).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise _missing(path) from error
        # A folder beside the root may begin with the same letters, so paths are compared part by part.
        if not real.is_relative_to(self._root):
            raise _missing(path)
        parts = real.relative_to(self._root).parts
        if any(self._is_hidden(part) for part in (*parts, *wanted.parts)):
            raise _missing(path)
        return parts

    def _open(self, parts: tuple[str, ...]) -> int:
        # Without O_NONBLOCK a pipe would wait for its other side.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        at = os.open(self._root, flags | os.O_DIRECTORY)
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            try:
                below = os.open(part, flags if is_last else flags | os.O_DIRECTORY, dir_fd=at)
            finally:
                os.close(at)
            at = below
        return at

    def _content(self, file: int) -> bytes:
        with os.fdopen(os.dup(file), "rb") as opened:
            return opened.read(self._most_bytes)

    def _folder(self, file: int, path: str) -> Folder:
        found = sorted(self._entries(file), key=lambda entry: entry.name)
        return Folder(path=path, entries=found[:_MOST_ENTRIES], has_more=len(found) > _MOST_ENTRIES)

    def _entries(self, file: int) -> Iterator[FileEntry]:
        with os.scandir(file) as entries:
            for entry in entries:
                if self._is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield FileEntry(name=_shown(entry.name), kind="folder")
                elif entry.is_file(follow_symlinks=False):
                    yield FileEntry(
                        name=_shown(entry.name), kind="file", size=entry.stat(follow_symlinks=False).st_size
                    )

    def _is_hidden(self, name: str) -> bool:
        return any(fnmatch(name.lower(), pattern) for pattern in self._hidden)


def _missing(path: str) -> Exception:
    # One answer for what does not exist and for what may not be read: it shows nothing of what lies outside.
    shown = path[:200].encode("unicode_escape").decode()
    return rejected(404, f"There is no file '{shown}'", "TOOL_FILE_NOT_FOUND")


def _masked(content: bytes) -> bytes:
    """Return a file's content without the secrets that this process knows."""
    for secret in process_redactor().secrets:
        content = content.replace(secret.encode(), b"[redacted]")
    return content


def _shown(name: str) -> str:
    return name.encode(errors="replace").decode()
