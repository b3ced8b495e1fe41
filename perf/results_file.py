"""Result files of the perf binaries (-J FILE), and of nccl-tests, which have the same keys."""
import json
import os


class Row:
    """One size at one type, in one file and one build of the library."""

    def __init__(self, key, block, path):
        self.key = key  # (variant, type, placement, size)
        self.time = block.get("time", block.get("cpu_time"))  # us
        self.busbw = block["bus_bw"]
        self.wrong = block["nwrong"]
        self.path = path


class Series:
    """The rows of one file, or of its second build (--lib)."""

    def __init__(self, name, rows):
        self.name = name
        self.rows = {}
        for row in rows:
            self.rows.setdefault(row.key, []).append(row)  # several with -N


def _rows(results, of):
    for result in results:
        source = of(result)
        for placement in ("out_of_place", "in_place"):
            block = source.get(placement)
            if block:
                key = (result.get("variant", "-"), result["type"], placement, result["size"])
                yield Row(key, block, source.get("path", ""))


def _baseline(entries):
    """Ways in turns: the rows of --baseline, one series a way."""
    ways = {}
    for entry in entries:
        for way, times in entry["ways"].items():
            us = times["median_us"]
            block = {"time": us, "bus_bw": entry["size"] / us / 1e3 * (1 - 1 / entry["ranks"]) if us else 0, "nwrong": 0}
            key = (entry["variant"], entry["type"], "out_of_place", entry["size"])
            ways.setdefault(way, []).append(Row(key, block, ""))
    return ways


def load(path, baseline=False):
    """The series of a file: one, two where --lib was given, and with `baseline` one for each way in turns."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not text.strip():
        raise ValueError(f"{path}: empty: the run that opened it did not end well")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON as -J writes it: {error}") from error
    if not isinstance(data, dict) or "results" not in data:
        raise ValueError(f"{path}: not a result file, no \"results\"")
    name = os.path.splitext(os.path.basename(path))[0]
    results = data["results"]
    series = []
    if not baseline:
        if results:
            series.append(Series(name, _rows(results, lambda r: r)))
        if any("lib" in r for r in results):
            series.append(Series(f"{name}, --lib", _rows(results, lambda r: r.get("lib", {}))))
    else:
        for way, rows in _baseline(data.get("baseline", [])).items():
            series.append(Series(f"{name}: {way}", rows))
    if not series:
        what = "--baseline" if baseline else "rows"
        raise ValueError(f"{path}: no results of {what} in it")
    return series


def load_all(paths, baseline=False):
    """The series of all files, with names that differ."""
    series = [s for path in paths for s in load(path, baseline)]
    names = [s.name for s in series]
    if len(set(names)) < len(names):
        for number, s in enumerate(series, 1):
            s.name = f"{number}: {s.name}"
    return series


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
