"""The network, files and code that rows were made from, as recorded."""

from collections import Counter

from ...report.table import Table
from ..experiments.cases import CASES
from ..experiments.records import Results, Row
from ..experiments.settings import Setting, official_rows

UNSAID = "according to the setting; the files do not name a network"
NO_CODE = "a version that was not recorded"


def network_named(results: Results, name: str) -> str:
    """Return the network of a setting as recorded in its files, or as described by the setting."""
    setting, files = results.settings[name], results.files(name)
    recorded = results.networks(name)
    named = list(dict.fromkeys(network for network in recorded.values() if network is not None))
    if not named:
        return f"{setting.network} ({UNSAID})"
    silent = [file for file, network in recorded.items() if network is None]
    words = [" and ".join(named)]
    inside = files.get(setting.inside, {})
    if "features" in inside:
        words.append(f"{inside['features']:,} features")
    if "accuracy" in inside:
        words.append(f"{100 * inside['accuracy']:.2f} % accuracy on {setting.inside}")
    if silent:
        words.append(f"{len(silent)} of {len(recorded)} files do not name a network")
    return "; ".join(words)


def sets_table(results: Results, name: str) -> Table:
    """Return a table of the files of a setting: rows, official rows, and rows used in a run."""
    setting, files = results.settings[name], results.files(name)
    used = _used([row for row in results.rows if row["setting"] == name and "rows_in" in row], setting)
    lines = []
    for file, record in files.items():
        folder, _, plain = file.rpartition("/")
        whole = official_rows(setting, plain)
        lines.append(
            (
                f"{file}.npz",
                setting.outside.get(plain, ""),
                f"{record['rows']:,}" if "rows" in record else "not recorded",
                _official(whole, record.get("rows")),
                used.get((folder, plain if plain == setting.inside else setting.outside.get(plain, plain)), ""),
                _made_by(record),
                record["sha256"],
            )
        )
    heads = ("file", "name", "rows", "official rows", "rows of a run, in + out", "made by", "SHA-256 begins with")
    return Table(f"{name}: files", heads, tuple(lines))


def codes(results: Results, name: str) -> list[str]:
    """Return the recorded versions of the code that made the rows of a setting."""
    return list(dict.fromkeys(_code(about) for about in results.of(name)))


def _official(whole: int | None, rows: int | None) -> str:
    if whole is None:
        return ""
    short = " (shorter)" if rows is not None and rows < whole else ""
    return f"{whole:,}{short}"


def _used(rows: list[Row], setting: Setting) -> dict[tuple[str, str], str]:
    """Return the most common numbers of rows, in + out, of the runs on each single set."""
    counts_of: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        if row["scored"] == "fitted" and "value" not in row and not CASES[row["case"]].has_reference:
            folder = {"odin": "odin-clean", "odin-perturbed": "odin-perturbed"}.get(row["base"], "")
            counts = counts_of.setdefault((folder, row["outside"]), Counter())
            counts[f"{row['rows_in']:,.0f} + {row['rows_out']:,.0f}"] += 1
            counts_of.setdefault((folder, setting.inside), Counter())[f"{row['rows_in']:,.0f}"] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in counts_of.items()}


def _made_by(record: dict[str, object]) -> str:
    made = record.get("made")
    if not isinstance(made, dict):
        return "not recorded"
    return ", ".join(str(made[name]) for name in ("network", "data") if name in made)


def _code(about: dict[str, object]) -> str:
    versions = about.get("versions")
    if not isinstance(versions, dict) or "truing" not in versions:
        return NO_CODE
    return f"truing {versions['truing']}" + (f", commit {about['commit']}" if about.get("commit") else "")
