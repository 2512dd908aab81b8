"""A folder of wheels for hosts without a network: stand-ins for what such a host has, and whether the rest is there."""

from __future__ import annotations

import argparse
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


@dataclass(frozen=True)
class Distribution:
    """What a wheel or a source archive says about itself."""

    name: str
    version: Version
    requires: tuple[Requirement, ...]


def write_stand_in(folder: Path, name: str, version: str) -> None:
    """Write a wheel with nothing in it: a resolver takes it for the distribution that the host has."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: thalweg\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, content)


def read(folder: Path) -> Iterator[Distribution]:
    """The distributions of a folder."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
                yield _parse(wheel.read(name).decode())
        elif path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                member = next(each for each in archive if each.name.count("/") == 1 and each.name.endswith("PKG-INFO"))
                content = archive.extractfile(member)
                assert content is not None, "PKG-INFO is a file"
                yield _parse(content.read().decode())


def missing(
    folder: Path, wanted: list[Requirement], provided: list[Distribution], environment: Mapping[str, str]
) -> list[str]:
    """What an installation of the wanted requirements would look for and not find, each with who needs it.

    provided: on the host already. environment: values of environment markers that differ from those of this Python.
    """
    found = {canonicalize_name(each.name): each for each in [*read(folder), *provided]}
    lacking, seen = [], set()
    waiting = [(requirement, "the command line") for requirement in wanted]
    while waiting:
        requirement, asker = waiting.pop()
        key = canonicalize_name(requirement.name)
        distribution = found.get(key)
        if distribution is None or not requirement.specifier.contains(distribution.version, prereleases=True):
            lacking.append(f"{requirement} for {asker}")
            continue
        for extra in ("", *requirement.extras):
            if (key, extra) in seen:
                continue
            seen.add((key, extra))
            waiting += [
                (inner, distribution.name)
                for inner in distribution.requires
                if inner.marker is None or inner.marker.evaluate({**environment, "extra": extra})
            ]
    return sorted(set(lacking))


def _parse(metadata: str) -> Distribution:
    headers = HeaderParser().parsestr(metadata)
    requires = tuple(Requirement(line) for line in headers.get_all("Requires-Dist", []))
    return Distribution(headers["Name"], Version(headers["Version"]), requires)


def main() -> int:
    """Check a folder; return 1 and name what is missing, if anything is."""
    parser = argparse.ArgumentParser(description="Check that a folder of wheels has all that an installation needs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("requirements", nargs="+", type=Requirement)
    parser.add_argument("--python", required=True, help="version of the host's Python, as 3.12")
    parser.add_argument("--provided", action="append", default=[], help="name==version that the host has")
    arguments = parser.parse_args()
    pairs = [given.split("==") for given in arguments.provided]
    provided = [Distribution(name, Version(version), ()) for name, version in pairs]
    environment = {
        "python_version": arguments.python,
        "python_full_version": f"{arguments.python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    lacking = missing(arguments.folder, arguments.requirements, provided, environment)
    for line in lacking:
        print(f"missing: {line}", file=sys.stderr)
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
