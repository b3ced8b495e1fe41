#!/usr/bin/env python3
"""plot.py: a picture of each kind, and one line for each file, variant and path."""
import os
import subprocess
import sys
import tempfile
import unittest

from result_files import BASELINE, row, write

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, SCRIPTS)

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("SKIPPED: matplotlib is not installed (python3-matplotlib)")
    sys.exit(4)

import plot  # noqa: E402
from results_file import load_all  # noqa: E402


class Plot(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def file(self, name, rows, **more):
        return write(os.path.join(self.directory.name, name), rows, **more)

    def plot(self, *arguments, code=0):
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "plot.py"), *arguments], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_lines_by_file_variant_path_and_placement(self):
        a = self.file("a.json", [row(2048, 9.0), row(1024, 5.0, in_place=4.0), row(1024, 6.0, variant="gather")])
        b = self.file("b.json", [row(1024, 10.0, lib=20.0)])
        lines = plot.lines(load_all([a, b]))
        self.assertEqual(sorted(lines), ["a, direct", "a, gather, direct", "a, in place, direct", "b, --lib, direct",
                                         "b, direct"])
        self.assertEqual([point[0] for point in lines["a, direct"]], [1024, 2048])

    def test_pictures(self):
        run = self.file("run.json", [row(1024, 5.0), row(2048, 9.0)], baseline=BASELINE)
        for name, magic, arguments in (("a.png", b"\x89PNG", []), ("b.svg", b"<?xml", ["-y", "time"]),
                                       ("c.png", b"\x89PNG", ["--baseline", "--title", "ways"])):
            picture = os.path.join(self.directory.name, name)
            self.plot(run, "-o", picture, *arguments)
            with open(picture, "rb") as file:
                self.assertTrue(file.read(8).startswith(magic))

    def test_refusals(self):
        self.assertIn("missing.json", self.plot("missing.json", code=1))
        run = self.file("run.json", [row(1024, 5.0)])
        self.assertIn("plot.py: ", self.plot(run, "-o", os.path.join(self.directory.name, "no", "x.png"), code=1))


if __name__ == "__main__":
    unittest.main()
