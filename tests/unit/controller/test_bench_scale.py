"""The measurement of metadata at scale runs; what it says of time is nobody's promise."""

from __future__ import annotations

import json
from pathlib import Path

from bench.scale.__main__ import main


def test_the_quick_sizes_end_with_every_row(tmp_path: Path) -> None:
    assert main(["--quick", "--json", str(tmp_path / "scale.json")]) == 0
    told = json.loads((tmp_path / "scale.json").read_text())
    assert {(row["what"], row["nodes"]) for row in told["rows"]} == {
        (what, nodes)
        for what in (
            "one topic, applied",
            "node lost, decided",
            "node lost, applied by one subscriber",
            "first image",
            "drain, planned",
        )
        for nodes in (6, 12)
    }
    lost = [row for row in told["rows"] if row["what"] == "node lost, decided"]
    assert all(row["sent_bytes"] > 0 for row in lost)
