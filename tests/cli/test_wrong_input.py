"""Errors of the command line: one line on stderr, exit code 1, no output, no changed file, no waiting."""

import os
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

ROWS = np.random.default_rng(2)
FEATURES, LOGITS, SCORES = ROWS.normal(size=(9, 3)), ROWS.normal(size=(9, 4)), ROWS.normal(size=9)
JUNK = b"neither this nor that\n" * 20


def make_files(folder: Path) -> None:
    """Fill a folder with valid and invalid files."""
    outputs = truing.Outputs(FEATURES, LOGITS, np.arange(9) % 4, SCORES)
    for ending in ("npz", "parquet", "arrow"):
        outputs.save(folder / f"good.{ending}")
    np.save(folder / "scores.npy", SCORES)
    truing.save(truing.fit_direct(FEATURES, SCORES), folder / "fit.npz")
    truing.save(truing.Moments.of(FEATURES, SCORES), folder / "moments.npz")
    arrays = {
        "flat": {"features": SCORES, "logits": LOGITS, "scores": FEATURES},
        "deep": {"features": FEATURES[None], "logits": LOGITS, "scores": FEATURES[None]},
        "nan": {"features": FEATURES * np.nan, "logits": LOGITS, "scores": SCORES * np.nan},
        "huge": {"features": FEATURES * 1e200, "logits": LOGITS, "scores": SCORES * 1e200},
        "text": {"features": FEATURES.astype(str), "logits": LOGITS, "scores": SCORES.astype(str)},
        "complex": {"features": FEATURES * 1j, "logits": LOGITS, "scores": SCORES * 1j},
        "objects": {"features": FEATURES.astype(object), "logits": LOGITS, "scores": SCORES.astype(object)},
        "record": {"features": np.zeros(3, dtype=[("a", "f8")]), "scores": np.zeros(3, dtype=[("a", "f8")])},
        "none": {"features": FEATURES[:0], "logits": LOGITS[:0], "scores": SCORES[:0]},
        "apart": {"features": FEATURES, "logits": LOGITS[:4], "scores": [SCORES[:4]]},
        "foreign": {"emb": FEATURES, "out": LOGITS},
    }
    for name, columns in arrays.items():
        np.savez(folder / f"{name}.npz", **columns)
    for ending in ("npz", "npy", "parquet", "arrow", "feather", "csv", "xls"):
        (folder / f"empty.{ending}").touch()
        (folder / f"features-junk.{ending}").write_bytes(JUNK)
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:-300])
    (folder / "cut.parquet").write_bytes((folder / "good.parquet").read_bytes()[:-300])
    (folder / "fit-cut.npz").write_bytes((folder / "fit.npz").read_bytes()[:-300])
    np.save(folder / "features-flat.npy", SCORES)
    (folder / "nothing").mkdir()
    (folder / "parts").mkdir()
    (folder / "parts" / "0.parquet").touch()
    (folder / "loop.npz").symlink_to("loop.npy")
    (folder / "loop.npy").symlink_to("loop.npz")
    (folder / "dangling.npz").symlink_to("gone.npz")
    os.mkfifo(folder / "pipe.npz")
    os.mkfifo(folder / "pipe.npy")
    (folder / os.fsdecode(b"\xff\xfe.npz")).write_bytes(JUNK)
    (folder / "two\nlines.npz").write_bytes(JUNK)
    csvs = {
        "no-scores": "row,base\n1,2\n",
        "semicolons": "row;scores\n1;2\n",
        "no-rows": "row,scores\n",
        "short": "row,scores\n1\n",
        "word": "scores\nmany\n",
        "python": "scores\n1_000\n",
        "nan": "scores\n1\nnan\n",
        "infinite": "scores\n1e999\n",
        "twice": "scores,scores\n1,2\n",
        "quote": 'scores\n"1\n',
        "blank": "\n\n\n",
        "wide": f"scores\n{'9' * 200_000}\n",
    }
    for name, text in csvs.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "latin.csv").write_bytes(b"scores,na\xefve\n1,2\n")
    (folder / "utf16.csv").write_bytes("scores\n1\n".encode("utf-16"))
    (folder / "nul.csv").write_bytes(b"scores\n1\x00\n")
    import pyarrow
    from pyarrow import parquet

    tables = {
        "no-rows": pyarrow.table({"features": pyarrow.array([], pyarrow.list_(pyarrow.float64()))}),
        "ragged": pyarrow.table({"features": [[1.0], [1.0, 2.0]], "scores": [[1.0], [1.0, 2.0]]}),
        "missing": pyarrow.table({"features": [[1.0], None], "scores": [1.0, None]}),
        "words": pyarrow.table({"features": [["a"], ["b"]], "scores": ["a", "b"]}),
        "foreign": pyarrow.table({"id": [1, 2], "emb": [[1.0], [2.0]]}),
        "dates": pyarrow.table({"features": pyarrow.array([0, 1], pyarrow.date32()), "scores": [None, None]}),
    }
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet")


# Files that no command can read.
UNREADABLE = [
    *("gone.npz", "gone/x.npz", "", ".", "nothing", "parts", "good.npz/x.npz", "nul\0.npz", "~", "-"),
    *("empty.npz", "empty.npy", "empty.parquet", "empty.arrow", "empty.xls", "empty.csv"),
    *(f"features-junk.{ending}" for ending in ("npz", "npy", "parquet", "arrow", "feather")),
    *(f"{name}.npz" for name in ("flat", "nan", "huge", "text", "complex", "objects", "record", "none")),
    *(f"{name}.parquet" for name in ("no-rows", "ragged", "missing", "words", "foreign", "dates", "cut")),
    *("foreign.npz", "cut.npz", "loop.npz", "dangling.npz", "pipe.npz", "/dev/null", "/dev/zero", "moments.npz"),
    *("n" * 300 + ".npz", os.fsdecode(b"\xff\xfe.npz"), "two\nlines.npz"),
]
A_FEW = ["gone.npz", "empty.npz", "features-junk.npz", "cut.npz", "nan.npz", "pipe.npz", "two\nlines.npz"]
NO_OUTPUTS = ["apart.npz", "fit.npz", "scores.npy", "features-flat.npy"]
NO_SCORES = [
    *("no-scores", "semicolons", "no-rows", "short", "word", "python", "nan", "infinite", "twice", "quote", "blank"),
    *("wide", "latin", "utf16", "nul", "features-junk"),
]
# A name without an ending is a folder of results, so it is not here.
WRONG_TARGETS = [
    *("gone/x.npy", "", ".", "x.xls", ".npy", "-", "good.npz/x.npy", "loop.npy", "pipe.npy", "/dev/full"),
    *("n" * 300 + ".npy", "nul\0.npy", "/", "good.npz", "nothing/../good.npz"),
]
WRONG_OPTIONS = [
    *(["--base", "tea"], ["--base"], ["--temperature", "0"], ["--temperature", "nan"], ["--temperature", "warm"]),
    *(["--colour", "red"], ["more.npz"], ["--two\nlines"]),
]
WRONG_DETECT_OPTIONS = [
    *(["--method", "guess"], ["--components", "0"], ["--components", "99"], ["--components", "1.5"]),
    *(["--components", "9" * 5000], ["--keep", "0.5"], ["--batch", "3"], ["--fdr", "0.1"], ["--accept", "0.9"]),
    *(["--method", "online", "--batch", "0"], ["--method", "online", "--order", "sideways"]),
    *(["--method", "rlr", "--keep", "2"], ["--method", "rlr", "--penalty", "inf"]),
    *(["--reference", "good.npz", "--accept", rate] for rate in ("0", "1.5", "nan", "all", "")),
    *(["--reference", "good.npz", "--fdr", "0.1", "--accept", "0.9"], ["--reference"]),
]
CASES = [
    *(["detect", name] for name in UNREADABLE + NO_OUTPUTS),
    *(["detect", "good.npz", "--reference", name] for name in A_FEW + NO_OUTPUTS),
    *(["score", name, "-o", "x.npy"] for name in A_FEW),
    *(["fit", name, "-o", "x.npz"] for name in A_FEW),
    *(["apply", "fit.npz", name, "-o", "x.npy"] for name in A_FEW),
    *(["apply", name, "good.npz", "-o", "x.npy"] for name in [*A_FEW, "good.npz", "fit-cut.npz", "scores.npy"]),
    *(["evaluate", "scores.npy", "scores.npy", "--outputs", name] for name in A_FEW),
    *(["threshold", name] for name in UNREADABLE),
    *(["threshold", f"{name}.csv"] for name in NO_SCORES),
    *(["evaluate", "scores.npy", name] for name in A_FEW),
    *(["detect", "good.npz", "-o", name] for name in WRONG_TARGETS),
    *(["apply", "fit.npz", "good.npz", "-o", name] for name in ("gone/x.npy", "good.npz", "fit.npz", "/dev/full")),
    *(["fit", "good.npz", "-o", name] for name in ("gone/x.npz", "good.npz", "/dev/full", "x.npy")),
    *(["fit", "good.npz", "-o", "x.npz", "--moments", name] for name in WRONG_TARGETS[:4]),
    *([command, "good.npz", "-o", "x.npz", *option] for command in ("detect", "fit") for option in WRONG_OPTIONS),
    *(["detect", "good.npz", *option] for option in WRONG_DETECT_OPTIONS),
    *(["threshold", "scores.npy", "--accept", keep] for keep in ("0", "1.1", "nan", "most", "")),
    *(["evaluate", "scores.npy", "scores.npy", "--convention", name] for name in ("", "mine")),
    *([], ["guess"], [""], ["detect"], ["evaluate", "scores.npy"], ["score", "good.npz"], ["bench", "guess"]),
]


def tree(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def test_an_error_is_reported_in_one_line_and_changes_no_file(tmp_path, monkeypatch, capfd):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path)
    before = tree(tmp_path)
    for arguments in CASES:
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        out, err = capfd.readouterr()
        assert (code, out, err.count("\n")) == (1, "", 1), (arguments, code, out, err)
        assert err.startswith("truing"), arguments
        assert err.removesuffix("\n").isprintable(), arguments
        assert tree(tmp_path) == before, arguments
