"""Is there a Java that Spark can use? Asked before anything is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_MIN = 17
HOW_TO = (
    f"Spark needs Java {JAVA_MIN} or newer. Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
    "Fedora: sudo dnf install java-21-openjdk-headless; macOS: brew install openjdk@17. "
    "If it is installed, put its bin folder on PATH or set JAVA_HOME."
)


def missing_java() -> str | None:
    """None when all is well, else one line that says what is wrong and how to mend it."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return f"no java on PATH. {HOW_TO}"
    try:
        answer = subprocess.run(  # noqa: S603 (the java of this user's PATH)
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run ({error}). {HOW_TO}"
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return f"{program} does not tell its version. {HOW_TO}"
    # Java 8 called itself 1.8.
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    return None if major >= JAVA_MIN else f"{program} is Java {major}. {HOW_TO}"
