"""Print the README's command that runs a nox session, so that CI runs what the README tells people to run."""

import sys
from pathlib import Path


def main(session: str) -> int:
    """Print the first README line that starts with python and runs this session; 1 if there is none."""
    readme = Path(__file__).parent.parent / "README.md"
    for line in readme.read_text().splitlines():
        command = line.strip()
        if command.startswith("python -m pip install nox") and command.endswith(f"nox -s {session}"):
            print(command)
            return 0
    print(f"README.md has no command for the session {session!r}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
