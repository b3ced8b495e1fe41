#!/usr/bin/env bash
# scripts/gpu_test with stand-ins for the GPU, the build and the tests: what fails, hangs, skips or is missing keeps nothing
# else from running, and all of it is in the file.
#   gpu_test.sh SCRIPT
set -euo pipefail
script=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/build/tests/gpu"
stub() { printf '#!/bin/bash\n%s\n' "$2" >"$1"; chmod +x "$1"; }

# Without a GPU: every step is named and says why it is not run; nothing is written.
stub "$work/bin/nvidia-smi" 'exit 9'
PATH=$work/bin:$PATH "$script" --dry-run --build "$work/build" "$work/none.json" >"$work/dry"
grep -q '^memcheck: skip (no GPU: nvidia-smi lists none)$' "$work/dry"
grep -q '^a rank killed in a kernel: skip' "$work/dry"
[[ ! -e $work/none.json ]]

stub "$work/bin/nvidia-smi" '[[ $1 == -L ]] || echo "NVIDIA Stand-in"; echo "GPU 0"'
stub "$work/bin/nvcc" 'echo "release 13.0, V13"'
stub "$work/bin/cmake" 'exit 0'
stub "$work/bin/nvidia-cuda-mps-control" '[[ ${1:-} == -d ]] && echo started >>"'"$work"'/mps" || cat >>"'"$work"'/mps"'
stub "$work/bin/compute-sanitizer" 'echo checked; exit 9'
stub "$work/build/tests/gpu/gpu_tests" 'case $1 in
  "[windows]") [[ -n ${CUDA_MPS_PIPE_DIRECTORY:-} ]] && exit 0; sleep 60 & sleep 60 ;;
  "[policy]") echo "SKIPPED: no table"; exit 4 ;;
  "[death]") kill -9 $$ ;;
esac'
stub "$work/build/tests/gpu/product_bench" 'echo "{\"what\": \"$1\", \"value\": 1.5}"; echo "{not json"'
sed 's/Step("windows", \(.*\), 120)/Step("windows", \1, 1)/' "$script" >"$work/gpu_test"  # what hangs, for a second
code=0
(cd "$(dirname "$script")/.." && sed -i "s|^ROOT = .*|ROOT = pathlib.Path('$PWD')|" "$work/gpu_test")
PATH=$work/bin:$PATH COMMIT=abc python3 "$work/gpu_test" --build "$work/build" "$work/result.json" >"$work/said" || code=$?
[[ $code == 1 ]]
python3 - "$work/result.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
assert (report["commit"], report["cuda"], report["gpu"]) == ("abc", "13.0", "NVIDIA Stand-in"), report
outcome = {s["step"]: (s["outcome"], s["reason"]) for s in report["steps"]}
assert outcome["the C API"] == ("passed", ""), outcome
assert outcome["windows"][0] == "timed out", outcome
assert outcome["windows under MPS"] == ("passed", ""), outcome
assert outcome["the policy"] == ("skipped", "no table"), outcome
assert outcome["bench: kernels"][0] == "skipped" and "was not built" in outcome["bench: kernels"][1], outcome
assert outcome["memcheck"] == ("failed", "exit status 9"), outcome
assert outcome["a rank killed in a kernel"] == ("failed", "ended by signal 9"), outcome
assert {"step": "bench: large", "what": "large", "value": 1.5} in report["measurements"], report
assert list(outcome)[-1] == "a rank killed in a kernel"
PYTHON
grep -q started "$work/mps"
grep -q quit "$work/mps"
grep -q '^  1 timed out: windows$' "$work/said"

# With several GPUs: what is wrong with a step keeps nothing from running, results that are text are kept, a step has its
# variables, and the last is what kills.
stub "$work/bin/nvidia-smi" 'case "$1 ${2:-}" in
  "-L ") printf "GPU 0: a\nGPU 1: b\n" ;;
  "topo -m") echo "GPU0 NV18" ;;
  "nvlink -s") exit 3 ;;
  *) echo "NVIDIA Stand-in" ;;
esac'
stub "$work/build/tests/gpu/gpu_tests" '[[ $1 == "[windows]" && $ULYSSES_WINDOWS == nccl ]] && { echo "no such provider"; exit 1; }
[[ $1 == "[death]" ]] && kill -9 $$; exit 0'
mkdir -p "$work/build/perf"
stub "$work/build/perf/peer_copy_perf" 'printf "{\n\"pairs\": 7}\n"'
stub "$work/build/perf/ulysses_a2a_perf" '[[ ${ULYSSES_PATH:-} == nccl ]] && exit 2; echo "{\"path\": \"${ULYSSES_PATH:-auto}\"}"'
code=0
env -u CUDA_VISIBLE_DEVICES PATH="$work/bin:$PATH" COMMIT=abc python3 "$work/gpu_test" --several --build "$work/build" "$work/several.json" >"$work/said" || code=$?
[[ $code == 1 ]]
python3 - "$work/several.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
steps = {s["step"]: s for s in report["steps"]}
assert report["gpus"] == 2
assert steps["nvidia-smi: topology"]["text"] == "GPU0 NV18\n", steps
assert steps["nvidia-smi: links"]["reason"] == "exit status 3"
assert steps["windows, by ipc"]["outcome"] == "passed" and steps["windows, by nccl"]["outcome"] == "failed"
assert steps["windows, by nccl"]["tail"] == "no such provider" and steps["windows, by nccl"]["env"] == {"ULYSSES_WINDOWS": "nccl"}
assert {"step": "peer copies", "pairs": 7} in report["measurements"]
assert {m.get("path") for m in report["measurements"]} >= {"auto", "direct", "copy-engine", "staged"}
assert steps["exchange, P=2: 1 KB to 512 MB, nccl, plain outputs"]["outcome"] == "failed"
assert steps["exchange, P=4: 1 KB to 512 MB, chosen, window outputs"]["reason"] == "4 GPUs are needed, and there are 2"
assert list(steps)[-1] == "a rank killed in a kernel" and steps["a rank killed in a kernel"]["reason"] == "ended by signal 9"
assert all(s["reason"] for s in report["steps"] if s["outcome"] == "skipped")
PYTHON
# No time left: said for every step that it would have taken, and the file is there.
env -u CUDA_VISIBLE_DEVICES PATH="$work/bin:$PATH" python3 "$work/gpu_test" --several --budget 4 --build "$work/build" "$work/late.json" >/dev/null
grep -q 'the 4 s are spent' "$work/late.json"
echo "all as it should be"
