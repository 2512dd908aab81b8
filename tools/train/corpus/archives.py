"""Reads the files inside an archive of any registry, without unpacking it to disk."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from thalweg.interfaces import ConfigError


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(path, content) of every regular file, in the archive's order.

    Raises ConfigError when the archive is missing or of another kind.
    """
    if not archive.is_file():
        raise ConfigError(f"{archive}: does not exist; run the stage `fetch` first")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith("/"):
                    yield name, wheel.read(name)
    elif archive.suffix == ".deb":
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpack:
            assert unpack.stdout is not None
            yield from _tar_members(unpack.stdout)
    elif archive.name.endswith(".tar.gz"):
        with archive.open("rb") as file:
            yield from _tar_members(file)
    else:
        raise ConfigError(f"{archive.name}: is no .whl, .deb or .tar.gz")


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry.name.removeprefix("./"), content.read()
