#!/usr/bin/env python3
"""A table of result files (-J FILE): time and, against the first of them, how many times as fast, by size."""
import argparse
import sys

from results_file import load_all, median


def table(series):
    """Head and rows as strings. Sizes that the first series lacks have no ratio."""
    head = ["size (B)", "type", "variant", "place", f"{series[0].name} (us)"]
    for s in series[1:]:
        head += [f"{s.name} (us)", "speed"]
    keys = []
    for s in series:
        keys += [key for key in s.rows if key not in keys]
    # In the order of the first file; what only later ones have comes last.
    rows, ratios = [], [[] for _ in series]
    for key in keys:
        variant, dtype, placement, size = key
        cells = [str(size), dtype, variant, "in" if placement == "in_place" else "out"]
        first = None
        for number, s in enumerate(series):
            found = s.rows.get(key)
            wrong = found and any(row.wrong for row in found)
            us = median([row.time for row in found]) if found else None
            cells.append("-" if us is None else f"{us:.2f}" + (" WRONG" if wrong else ""))
            if number == 0:
                first = us
                continue
            if us and first:
                ratios[number].append(first / us)
                cells.append(f"{first / us:.2f} x")
            else:
                cells.append("-")
        rows.append(cells)
    last = ["median", "", "", "", ""]
    for per_size in ratios[1:]:
        last += ["", f"{median(per_size):.2f} x" if per_size else "-"]
    if len(series) > 1:
        rows.append(last)
    return head, rows


def plain(head, rows):
    widths = [max(len(line[i]) for line in [head] + rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in [head] + rows)


def markdown(head, rows):
    lines = [head, ["---:"] * len(head)] + rows
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="result files; ratios are against the first")
    parser.add_argument("--markdown", action="store_true", help="as a Markdown table")
    parser.add_argument("--baseline", action="store_true", help="the ways that --baseline took in turns, instead of rows")
    arguments = parser.parse_args()
    try:
        head, rows = table(load_all(arguments.files, arguments.baseline))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"compare.py: {error!r}" if isinstance(error, KeyError) else f"compare.py: {error}")
    print(markdown(head, rows) if arguments.markdown else plain(head, rows))


if __name__ == "__main__":
    main()
