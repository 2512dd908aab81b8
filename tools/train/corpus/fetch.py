"""Fetches the pinned archives with the ordinary clients of their registries, and checks each against its digest."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.train.corpus.sources import Source

from thalweg.interfaces import ConfigError

WHEELS_OF = (
    *("--only-binary=:all:", "--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=none"),
    *(f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_24", "2014")),
    "--platform=any",
)
"""One platform's wheels, whatever machine asks, so that the digests are the same."""


def fetch(sources: Sequence[Source], archives: Path) -> None:
    """Bring every archive that is not there yet. Raises ConfigError when one cannot be had or is another file."""
    for source in sources:
        path = archives / source.archive
        if not path.is_file():
            print(f"fetching {source.package}", flush=True)
            _download(source, archives)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != source.sha256:
            raise ConfigError(f"{path}: SHA-256 is {found}; sources.toml pins {source.sha256}")


def record(sources: Sequence[Source], path: Path) -> None:
    """Write what was fetched: name, version, licence, archive and digest of each source."""
    keys = ("name", "part", "version", "licence", "registry", "package", "archive", "sha256")
    rows = [{key: getattr(source, key) for key in keys} for source in sources]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _download(source: Source, archives: Path) -> None:
    """Into a folder of its own first, so that what is interrupted leaves no half file behind."""
    with tempfile.TemporaryDirectory(dir=archives) as folder:
        result = subprocess.run(_command(source), cwd=folder, capture_output=True, text=True, check=False)
        found = sorted(path.name for path in Path(folder).iterdir())
        if result.returncode or found != [source.archive]:
            raise ConfigError(
                f"{source.package}: the registry gave {', '.join(found) or 'nothing'}, not {source.archive}; "
                f"pin in sources.toml what it has\n{result.stderr.strip()}"
            )
        (Path(folder) / source.archive).rename(archives / source.archive)


def _command(source: Source) -> list[str]:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", source.package]
    commands = {
        "debian": ["apt-get", "download", source.package],
        "wheel": [*pip, *WHEELS_OF],
        "sdist": [*pip, "--no-binary=:all:"],
    }
    return commands[source.registry]
