#!/usr/bin/env python3
"""A picture of result files (-J FILE): bus bandwidth or time over size, a line for each file, variant and path."""
import argparse
import sys

from results_file import load_all, median


def lines(series):
    """Points (size, time, busbw) by label, in order of size."""
    points = {}
    several_types = len({key[1] for s in series for key in s.rows}) > 1
    for s in series:
        for (variant, dtype, placement, size), rows in s.rows.items():
            parts = [s.name]
            if variant != "-":
                parts.append(variant)
            if several_types:
                parts.append(dtype)
            if placement == "in_place":
                parts.append("in place")
            if rows[0].path:
                parts.append(rows[0].path)
            point = (size, median([r.time for r in rows]), median([r.busbw for r in rows]))
            points.setdefault(", ".join(parts), []).append(point)
    return {label: sorted(of) for label, of in points.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="result files")
    parser.add_argument("-o", "--output", default="perf.png", help="picture: .png, .svg or .pdf (default %(default)s)")
    parser.add_argument("-y", choices=["busbw", "time"], default="busbw", help="what is drawn (default %(default)s)")
    parser.add_argument("--title", default="", help="above the picture")
    parser.add_argument("--baseline", action="store_true", help="the ways that --baseline took in turns, instead of rows")
    arguments = parser.parse_args()
    try:
        drawn = lines(load_all(arguments.files, arguments.baseline))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"plot.py: {error!r}" if isinstance(error, KeyError) else f"plot.py: {error}")
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: matplotlib is not installed (Debian, Ubuntu: apt-get install python3-matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for label, points in drawn.items():
        sizes, times, bandwidths = zip(*points)
        axes.plot(sizes, times if arguments.y == "time" else bandwidths, marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda size, _: size_text(size)))
    if arguments.y == "time":
        axes.set_yscale("log")
    axes.set_xlabel("size")
    axes.set_ylabel("time (us)" if arguments.y == "time" else "bus bandwidth (GB/s)")
    if arguments.y == "busbw":
        axes.set_ylim(bottom=0)
    axes.set_title(arguments.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(arguments.output, dpi=150)
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {error}")
    print(arguments.output)


def size_text(size):
    for unit in ("", "K", "M", "G"):
        if size < 1024 or unit == "G":
            return f"{size:g}{unit}"
        size /= 1024


if __name__ == "__main__":
    main()
