"""Write rows as the parts of a table, in any layout, and read results back."""

from itertools import pairwise

import numpy as np
import pyarrow.csv
import pyarrow.parquet

import truing

KINDS = ("npz", "parquet", "arrow", "npy")


def write_part(folder, name, rows, kind="npz", dtype=np.float32, ids=None):
    """Write columns as one part, which may have no rows. The kind npy is a folder with one file per column."""
    columns = {name: column.astype(dtype) for name, column in rows.items()}
    if kind == "npy":
        (folder / name).mkdir()
        for column, array in columns.items():
            np.save(folder / name / f"{column}.npy", array)
        return
    path = folder / f"{name}.{kind}"
    if kind == "npz":
        np.savez(path, **columns, **({} if ids is None else {"id": ids}))
        return
    lists = {
        name: pyarrow.array(array)
        if array.ndim == 1
        else pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
        for name, array in columns.items()
    }
    table = pyarrow.table(lists | ({} if ids is None else {"id": ids}))
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
        return
    with pyarrow.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def columns_of(rows):
    """Return the columns of outputs by name, for `write_part`."""
    columns = {"features": rows.features, "logits": rows.logits, "scores": rows.scores}
    return {name: column for name, column in columns.items() if column is not None}


def written(folder, rows, cuts, kind="npz"):
    """Write rows as parts of one kind, cut at these rows, and return the folder."""
    folder.mkdir(parents=True)
    for number, (start, stop) in enumerate(pairwise([0, *cuts, len(rows)])):
        rows[start:stop].save(folder / f"part-{number}.{kind}")
    return folder


def written_at_random(folder, rows, rng, dtypes=(np.float32,)):
    """Write rows as parts of random kinds and types, cut at random: some are empty, and some have one row."""
    folder.mkdir(parents=True)
    cuts = rng.integers(0, len(rows) + 1, 4)
    cuts = sorted([*cuts, cuts[0], min(cuts[1] + 1, len(rows)), 0])
    for number, (start, stop) in enumerate(pairwise([0, *cuts, len(rows)])):
        part = {name: column[start:stop] for name, column in columns_of(rows).items()}
        write_part(folder, f"part-{number}", part, str(rng.choice(KINDS)), rng.choice(dtypes))
    return folder


def read(files):
    """Return the columns of all result files, one file after another."""
    tables = [
        pyarrow.csv.read_csv(file) if file.suffix == ".csv" else pyarrow.parquet.read_table(file) for file in files
    ]
    return {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in tables[0].column_names}


def contents(folder):
    """Return the bytes of every file below a folder by relative path, without drafts that killed writers leave."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".draft")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def exact(rows):
    """Return the rows with numbers that float16 holds exactly, so that a part may have any type."""
    columns = {name: column.astype(np.float16).astype(np.float64) for name, column in columns_of(rows).items()}
    return truing.Outputs(**columns)
