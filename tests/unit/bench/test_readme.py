"""bench.runner.readme: README's table is that of the document which it names, and nobody's else."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.runner import readme, store
from bench.runner.documents import Document, Sample
from bench.runner.readme import BEGIN, END, README, between, block, named, put

NAME = "bench/results/2026-11-28-1a2b3c4.json"


def document(*samples: Sample, suite: str = "") -> Document:
    return Document(
        "1a2b3c4", "2026-11-28", {"cores": "2"}, {"Kafka": "4.3.1"}, suite=suite, samples=list(samples)
    )


HELD = document(
    *(Sample("produce-1k-1p", who, n, {"mb_per_s": 50.0}) for who in ("kafka", "fsync") for n in range(5)),
    Sample("latency-1000", "kafka", 0, {"ack_p50_ms": 1.0, "ack_p99_ms": 2.0}),
)
BEFORE = f"head\n\n{BEGIN}\n\nold figures\n\n{END}\n\ntail\n"


def folder(tmp_path: Path, held: Document = HELD, text: str = BEFORE) -> Path:
    (tmp_path / "README.md").write_text(text)
    file = tmp_path / NAME
    store.save(held, file)
    return file


def test_readme_has_what_follows_from_the_document_that_it_names() -> None:
    text = README.read_text()
    if name := named(text):
        held = store.load(README.parent / name)
        assert between(text) == block(held, name), f"make bench-readme DOCUMENT={name} writes it anew"


def test_the_table_is_put_between_the_marks_and_nothing_else_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder(tmp_path)
    for _ in range(2):
        assert readme.main([str(file)], tmp_path) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"head\n\n{BEGIN}\n\nPenstock beside Apache Kafka")
    assert text.endswith(f"|\n\n{END}\n\ntail\n")
    assert "old figures" not in text
    assert named(text) == NAME
    assert between(text) == block(HELD, NAME)
    assert "1a2b3c4 on 2026-11-28" in text
    assert capsys.readouterr().out == "written: README.md\n" * 2


def test_a_table_of_no_document_names_none() -> None:
    assert named(BEFORE) == ""


def test_figures_that_were_changed_by_hand_are_seen() -> None:
    text = put(BEFORE, block(HELD, NAME).replace("50.0", "51.0"))
    assert between(text) != block(HELD, NAME)


@pytest.mark.parametrize("text", ["no marks", f"{BEGIN} and no end", f"{END} {BEGIN}"])
def test_a_readme_without_marks_stays_as_it_is(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder(tmp_path, text=text)
    assert readme.main([str(file)], tmp_path) == 1
    assert (tmp_path / "README.md").read_text() == text
    assert capsys.readouterr().err.startswith("bench-readme: README.md lacks")


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (document(), "has none of the rows"),
        (document(Sample("growth-nodes-1", "kafka", 0, {"mb_per_s": 1.0})), "has none of the rows"),
        (document(suite="transactions"), "is of transactions"),
    ],
)
def test_what_is_no_table_of_readme_is_one_line(
    tmp_path: Path, held: Document, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder(tmp_path, held)
    assert readme.main([str(file)], tmp_path) == 1
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_a_document_that_readers_do_not_find_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder(tmp_path)
    elsewhere = file.rename(tmp_path / "mine.json")
    assert readme.main([str(elsewhere)], tmp_path) == 1
    assert "is not in bench/results/" in capsys.readouterr().err
