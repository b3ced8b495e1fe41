#!/usr/bin/env python3
"""compare.py: ratios by size, both forms, and what it refuses."""
import os
import subprocess
import sys
import tempfile
import unittest

from result_files import BASELINE, row, write

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare.py")


class Compare(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def file(self, name, rows, **more):
        return write(os.path.join(self.directory.name, name), rows, **more)

    def compare(self, *arguments, code=0):
        done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_ratio_per_size_and_median(self):
        old = self.file("old.json", [row(1024, 10.0), row(2048, 30.0)])
        new = self.file("new.json", [row(1024, 5.0), row(2048, 20.0)])
        lines = [line.split() for line in self.compare(old, new).splitlines()]
        self.assertEqual(lines[1], ["1024", "float", "-", "out", "10.00", "5.00", "2.00", "x"])
        self.assertEqual(lines[2][-2:], ["1.50", "x"])
        self.assertEqual(lines[3], ["median", "1.75", "x"])

    def test_three_files_sizes_missing_and_in_place(self):
        a = self.file("a.json", [row(1024, 10.0, in_place=8.0)])
        b = self.file("b.json", [row(1024, 20.0), row(4096, 40.0)])
        c = self.file("c.json", [row(1024, 10.0, in_place=4.0)])
        lines = [line.split() for line in self.compare(a, b, c).splitlines()]
        self.assertEqual(lines[1][4:], ["10.00", "20.00", "0.50", "x", "10.00", "1.00", "x"])
        self.assertEqual(lines[2][3:], ["in", "8.00", "-", "-", "4.00", "2.00", "x"])
        self.assertEqual(lines[3][4:], ["-", "40.00", "-", "-", "-"])

    def test_second_build_of_one_file(self):
        out = self.compare(self.file("run.json", [row(1024, 10.0, lib=20.0)]))
        self.assertIn("run, --lib (us)", out)
        self.assertIn("0.50 x", out)

    def test_cycles_are_one_row_by_their_median(self):
        old = self.file("old.json", [row(1024, us) for us in (10.0, 90.0, 12.0)])
        self.assertIn(" 12.00", self.compare(old))

    def test_wrong_values_show(self):
        self.assertIn("WRONG", self.compare(self.file("bad.json", [row(1024, 10.0, wrong=3)])))

    def test_markdown(self):
        old = self.file("old.json", [row(1024, 10.0)])
        lines = self.compare("--markdown", old, old).splitlines()
        self.assertTrue(all(line.startswith("| ") and line.endswith(" |") for line in lines))
        self.assertEqual(len({line.count("|") for line in lines}), 1)
        self.assertIn("1: old (us)", lines[0])
        self.assertIn("2: old (us)", lines[0])

    def test_ways_of_a_baseline(self):
        out = self.compare("--baseline", self.file("run.json", [row(4096, 10.0)], baseline=BASELINE))
        self.assertIn("run: plain copy (us)", out)
        self.assertIn("2.00 x", out)

    def test_a_file_of_nccl_tests(self):
        plain = row(1024, 10.0)
        for ours in ("variant", "path"):
            del plain[ours]
        self.assertIn("10.00", self.compare(self.file("nccl.json", [plain])))

    def test_refusals(self):
        self.assertIn("missing.json", self.compare("missing.json", code=1))
        self.assertIn("no results", self.compare(self.file("none.json", []), code=1))
        text = os.path.join(self.directory.name, "text.json")
        with open(text, "w", encoding="utf-8") as file:
            file.write("text")
        self.assertIn("compare.py: ", self.compare(text, code=1))


if __name__ == "__main__":
    unittest.main()
