"""What scripts/gpu_test does on a machine with several GPUs, and what becomes of a step. Pure: nothing is run here."""
import re

SKIP_CODE = 4  # of a test that found nothing to test
SHAPES = "wan21-14b-480p,wan21-720p-text,h3-32k,h3-128k,flux1-1024"


class Step:
    """`gpus`: how many it takes. `text`: its output is kept, as it is a result itself."""

    def __init__(self, name, command, limit, needs=(), mps=False, gpu=True, gpus=1, env=None, text=False):
        self.name, self.command, self.limit, self.needs, self.mps, self.gpu = name, command, limit, needs, mps, gpu
        self.gpus, self.env, self.text = gpus, env or {}, text


def measured(name, limit, program, *arguments, **more):
    """A perf binary whose JSON becomes one line of the log."""
    one_line = "import json, sys; print(json.dumps(json.load(sys.stdin)))"
    script = f"set -o pipefail; \"$@\" -J - | python3 -c '{one_line}'"
    return Step(name, ["bash", "-c", script, "measured", program, *arguments], limit, [program], **more)


def drop_in(build, ranks, nccl="", **more):
    """NCCL programs with libulysses-nccl before NCCL, by processes. Ranks may share a GPU where NCCL takes that. `nccl`:
    instead of the one that torch brings."""
    library = f"{build}/src/libulysses-nccl.so"
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    preloaded = [*mpirun, "-x", f"LD_PRELOAD={library}"]
    program, perf = f"{build}/tests/drop_in/nccl_program", f"{build}/perf/nccl_drop_in_perf"
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    return [Step("an NCCL program", [*mpirun, program], 60, [program], env=env, **more),
            Step("an NCCL program, libulysses-nccl preloaded", [*preloaded, program, "--taken", "18", "11"], 60, [program], env=env,
                 **more),
            Step("bench: libulysses-nccl", [*preloaded, perf], 60, [perf], env=env, **more),
            Step("torch.distributed, libulysses-nccl preloaded",
                 ["python3", "tests/drop_in/torch_test.py", library, "--ranks", str(ranks), *(["--nccl", nccl] if nccl else [])], 200,
                 [library], env=env, **more)]


def why_too_few(step, gpus):
    if step.gpus <= gpus:
        return ""
    return f"{step.gpus} GPUs are needed, and there {'is' if gpus == 1 else 'are'} {gpus}"


def outcome(limit, code, text):
    if code is None:
        return "timed out", f"not back after {limit:.0f} s"
    reason = re.search(r"^SKIPPED: (.*)$", text, re.MULTILINE)
    if code == SKIP_CODE and reason:  # without it, four assertions failed
        return "skipped", reason.group(1)
    if code != 0:
        return "failed", f"exit status {code}" if code > 0 else f"ended by signal {-code}"
    return "passed", ""


DROP_IN = ["ulysses_nccl", "nccl_program", "nccl_drop_in_perf"]
TARGETS = ["gpu_tests", "product_bench", "soak", *DROP_IN, "ulysses_topo", "peer_copy_perf", "ulysses_a2a_perf", "all_gather_perf",
           "alltoall_perf", "param_gather_perf"]


def several(build, gpus, configure, nccl=""):
    """Ten minutes for 2, 4 or 8 GPUs of one host, the most valuable first, what kills ranks last. Where there are fewer
    GPUs than a step wants, it is there all the same, to be skipped with the reason."""
    tests, bench = f"{build}/tests/gpu/gpu_tests", f"{build}/tests/gpu/product_bench"
    a2a, gather, params, peers, topo = (
        f"{build}/perf/{n}" for n in ("ulysses_a2a_perf", "all_gather_perf", "param_gather_perf", "peer_copy_perf", "ulysses_topo"))
    most = max(p for p in (2, 4, 8) if p <= max(gpus, 2))  # ranks of the main measurements
    fewer = [p for p in (8, 4, 2) if p != most]

    def test(name, tags, limit, **more):
        return Step(name, [tests, tags], limit, [], **{"gpus": 2, **more})

    def exchange(name, limit, ranks, *arguments, **more):
        return measured(f"exchange, P={ranks}: {name}", limit, a2a, "-t", str(ranks), "-d", "bfloat16", "--direction", "both",
                        *arguments, gpus=ranks, **more)

    def sweep(ranks, path, out):
        sizes = ["-b", "1K", "-e", "512M", "-f", "8", "-c", "0", "-n", "10", "-w", "2", "--heads", "56"]
        env = {"ULYSSES_PATH": path} if path != "auto" else {}
        return exchange(f"1 KB to 512 MB, {'chosen' if path == 'auto' else path}, {out} outputs", 40, ranks, *sizes,
                        "--out", out, env=env)

    def shapes(ranks, names, limit, *arguments, **more):
        return exchange(f"{names} against the others", limit, ranks, "--shape", names, "--baseline", "--rounds", "11",
                        "-n", "5", *arguments, **more)

    def parameters(name, limit, ranks, *arguments, **more):
        return measured(f"parameters, P={ranks}: {name}", limit, params, "-t", str(ranks), *arguments, gpus=ranks, **more)

    forwards = ["--model", "wan14b", "--scale", "1/4", "--forwards", "35", "--compute-us", "2000"]
    return [
        Step("configure", configure, 90, ["nvcc"], gpu=False),
        Step("build", ["cmake", "--build", build, "--target", *TARGETS], 300, ["nvcc"], gpu=False),
        # What there is.
        Step("nvidia-smi: topology", ["nvidia-smi", "topo", "-m"], 15, text=True),
        Step("nvidia-smi: links", ["nvidia-smi", "nvlink", "-s"], 15, text=True),
        Step("ulysses_topo", [topo], 20, text=True),
        # Whether it is right, from the ground up.
        test("GPUs of the ranks' own", "[several]~[engines]~[visibility]", 60),
        test("a copy engine's write and its flag", "[visibility]", 60),
        test("kernels, ranks as threads", "[gpu][threads]", 60, gpus=1),
        test("kernels, ranks as processes", "[gpu][processes]", 60, gpus=1),
        test("copy engines", "[engines]", 60, gpus=1),
        test("the C API", "[gpu]~[threads]~[processes]~[large]~[death]~[memcheck]~[policy]~[windows]~[provider]~[nccl]~[params]~[engines]"
             "~[visibility]~[several]", 90, gpus=1),
        test("windows, by ipc", "[windows]", 40, gpus=1, env={"ULYSSES_WINDOWS": "ipc"}),
        # What it gives, where most is at stake.
        measured("peer copies", 40, peers, "-n", "10", gpus=2),
        shapes(most, "wan21-14b-480p,wan21-720p-text", 60),
        shapes(most, "h3-128k", 60, "-c", "0"),
        sweep(most, "auto", "window"),
        parameters("a block of wan14b", 30, most, "-b", "702M", "-e", "702M", "-n", "10", "-c", "0", "--baseline", "--rounds", "11"),
        # The rest of what has to be right.
        test("NCCL as the fallback", "[nccl]~[death]", 60, gpus=1),
        test("windows, by nccl", "[windows]", 40, env={"ULYSSES_WINDOWS": "nccl"}),
        test("windows by nccl: the choice, and failures at every stage", "[provider]", 90),
        test("eager exchanges, windows by nccl", "[gpu][cases]~[large]~[params]", 60, env={"ULYSSES_WINDOWS": "nccl"}),
        test("parameters", "[params]", 60, gpus=1),
        test("the exact-gradient gate", "[gradients]", 60, gpus=1),
        # Every path, forced.
        *[sweep(most, path, "window") for path in ("direct", "copy-engine")],
        *[sweep(most, path, "plain") for path in ("auto", "staged", "copy-engine", "nccl")],
        parameters("1 KB to 1 GB against ncclAllGather", 60, most, "-b", "1K", "-e", "1G", "-f", "32", "-c", "0", "-n", "5",
                   "--baseline", "--rounds", "7"),
        parameters("against NCCL without CTAs", 40, most, "-b", "1M", "-e", "1G", "-f", "32", "-c", "0", "-n", "5", "--baseline",
                   "--rounds", "7", env={"NCCL_CTA_POLICY": "2"}),
        *[Step(f"exchange beside a GEMM chain, {path}", [bench, "overlap"], 30, gpus=2, env={"ULYSSES_PATH": path})
          for path in ("direct", "copy-engine")],
        parameters("35 forwards", 60, most, *forwards),
        parameters("35 forwards, fetched ahead", 40, most, *forwards, "--residency", "transient", "--prefetch-depth", "1"),
        shapes(most, "h3-32k,flux1-1024", 60),
        *[exchange(f"h3-32k with at most {ctas} CTAs", 20, most, "--shape", "h3-32k", "-c", "0", "-n", "10",
                   env={"ULYSSES_PATH": "direct", "ULYSSES_MAX_CTAS": str(ctas)}) for ctas in (8, 16, 24, 36, 72, 132)],
        shapes(most, "h3-250k", 60, "-c", "0"),
        # Fewer ranks than there could be.
        *[step for ranks in fewer for step in (
            shapes(ranks, SHAPES, 60, "-c", "0"), sweep(ranks, "auto", "window"),
            parameters("a block of wan14b", 30, ranks, "-b", "702M", "-e", "702M", "-n", "10", "-c", "0", "--baseline", "--rounds", "7"))],
        *[sweep(ranks, path, "window") for ranks in fewer for path in ("copy-engine", "direct")],
        measured("all-gather, graphs", 40, gather, "-t", str(most), "-b", "1K", "-e", "256M", "-f", "16", "-G", "5", "-c", "0",
                 "--baseline", "--rounds", "7", gpus=most),
        # What one GPU would show as well, and what a machine may not survive.
        measured(f"exchange, P={most}: ranks as processes", 60, "mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                 str(most), a2a, "--shape", SHAPES, "-d", "bfloat16", "--direction", "both", "-c", "0", "-n", "10", gpus=most),
        *drop_in(build, most, nccl, gpus=most),
        test("the policy", "[policy]", 60, gpus=1),
        test("large", "[large]~[policy]~[gradients]", 60, gpus=1),
        test("ranks that share a GPU", "[cases]~[large],[windows]", 60, env={"ULYSSES_TEST_GPUS": "1"}),
        Step("soak", [f"{build}/tests/soak/soak", "--memory", "device", "--ranks", str(most), "--calls", "3000", "--seconds",
                      "60"], 80, gpus=most),
        test("a rank killed in a kernel", "[death]", 60, gpus=1),
    ]
