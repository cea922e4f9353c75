"""Documents on disk: written whole and renamed into place after each sample, so that what was measured is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from bench.runner.documents import Document, from_json

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def file_name(document: Document) -> str:
    """By day and commit; what else tells occasions apart, too."""
    parts = [document.date, document.commit]
    parts += [document.suite] if document.suite else []
    parts += [document.size] if document.size != "full" else []
    parts += ["secure"] if document.secure else []
    parts += ["noise-accepted"] if document.accepted_noise else []
    return "-".join(parts) + ".json"


def load(file: Path) -> Document:
    """Raises ValueError, with the file's name, for what is no document."""
    try:
        return from_json(json.loads(file.read_text()))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def save(document: Document, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document.to_json(), indent=1) + "\n")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
