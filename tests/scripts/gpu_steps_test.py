#!/usr/bin/env python3
"""Which steps there are for how many GPUs, why some are left out, and what becomes of one. gpu_steps_test.py SCRIPTS"""
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
from gpu_steps import Step, measured, outcome, several, why_too_few  # noqa: E402


def run_on(gpus):
    return [s for s in several("build", gpus, ["cmake"]) if not why_too_few(s, gpus)]


class Several(unittest.TestCase):
    def test_names_are_unique(self):
        for gpus in (1, 2, 3, 4, 8):
            names = [s.name for s in several("build", gpus, ["cmake"])]
            self.assertEqual(len(names), len(set(names)))

    def test_no_more_ranks_than_gpus_are_measured(self):
        for gpus in (2, 3, 4, 8):
            for step in run_on(gpus):
                if "-t" in step.command:
                    self.assertLessEqual(int(step.command[step.command.index("-t") + 1]), gpus, step.name)

    def test_all_gpus_come_first_and_fewer_after(self):
        ranks = [s.name for s in run_on(8) if "against the others" in s.name]
        self.assertTrue(ranks[0].startswith("exchange, P=8"))
        self.assertEqual({r[10:13] for r in ranks}, {"P=2", "P=4", "P=8"})

    def test_one_gpu_skips_what_is_about_several(self):
        for step in several("build", 1, ["cmake"]):
            if "P=" in step.name or "GEMM" in step.name or step.command[-1] == "[visibility]":
                self.assertIn("are needed, and there is 1", why_too_few(step, 1), step.name)
        names = [s.name for s in run_on(1)]
        self.assertIn("kernels, ranks as threads", names)
        self.assertIn("a rank killed in a kernel", names)

    def test_order(self):
        names = [s.name for s in several("build", 4, ["cmake"])]
        self.assertEqual(names[:2], ["configure", "build"])
        self.assertEqual(names[-1], "a rank killed in a kernel")
        self.assertLess(names.index("a copy engine's write and its flag"), names.index("peer copies"))
        self.assertLess(names.index("peer copies"), names.index("the policy"))

    def test_every_path_is_forced_and_chosen(self):
        paths = {s.env.get("ULYSSES_PATH", "chosen") for s in run_on(8) if "1 KB to 512 MB" in s.name}
        self.assertEqual(paths, {"chosen", "direct", "staged", "copy-engine", "nccl"})
        self.assertEqual({s.env["ULYSSES_WINDOWS"] for s in run_on(2) if "ULYSSES_WINDOWS" in s.env}, {"ipc", "nccl"})

    def test_too_few(self):
        self.assertEqual(why_too_few(Step("a", [], 1, gpus=4), 2), "4 GPUs are needed, and there are 2")
        self.assertEqual(why_too_few(Step("a", [], 1), 1), "")


class Outcome(unittest.TestCase):
    def test_outcome(self):
        self.assertEqual(outcome(5, 0, ""), ("passed", ""))
        self.assertEqual(outcome(5, None, ""), ("timed out", "not back after 5 s"))
        self.assertEqual(outcome(5, 4, "x\nSKIPPED: no GPU\n"), ("skipped", "no GPU"))
        self.assertEqual(outcome(5, 4, "4 assertions"), ("failed", "exit status 4"))
        self.assertEqual(outcome(5, -9, ""), ("failed", "ended by signal 9"))

    def test_measured(self):
        step = measured("m", 7, "perf", "-t", "2", gpus=2, env={"A": "b"})
        self.assertEqual((step.needs, step.gpus, step.env, step.command[-3:]), (["perf"], 2, {"A": "b"}, ["perf", "-t", "2"]))


if __name__ == "__main__":
    unittest.main()
