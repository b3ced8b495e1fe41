#!/usr/bin/env bash
# Runs one case of the command line's promises: perf_test.sh CASE PERF DAMAGED_PERF LIBRARY [MPIEXEC]
set -euo pipefail
case_name=$1 perf=$2 damaged=$3 library=$4 mpiexec=${5:-}
damaged_flat=$(dirname "$damaged")
flat=$(dirname "$perf")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Not a launcher's child, whatever the tests themselves were started by.
unset NCCL_TESTS_MIN_BW NCCL_TESTS_SPLIT NCCL_TESTS_SPLIT_MASK NCCL_TESTS_DEVICE
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_SIZE PMI_RANK PMIX_RANK MPI_LOCALNRANKS

fail() {
  echo "FAILED: $*"
  for f in "$work"/*; do echo "--- $f"; head -c 4000 "$f"; done
  exit 1
}

# run CODE COMMAND...: CODE is 0 or nonzero; standard output and error go to $work/out and $work/err.
run() {
  local expected=$1
  code=0
  shift
  "$@" >"$work/out" 2>"$work/err" || code=$?
  if [[ $expected == 0 && $code != 0 ]] || [[ $expected == nonzero && $code == 0 ]]; then fail "exit code $code: $*"; fi
  # 128 and above: a signal, so an abort.
  [[ $code -lt 128 ]] || fail "exit code $code: $*"
}
rows() { grep -cE '^ +[0-9]+ +[0-9]+ ' "$work/out" || true; }
# field N: column N of every row.
field() { awk -v n="$1" '/^ +[0-9]+ +[0-9]+ /{print $n}' "$work/out"; }
has() { grep -qF -- "$1" "$work/${2:-out}" || fail "no '$1' in ${2:-out}"; }
mpi() { "$mpiexec" --oversubscribe --allow-run-as-root "$@"; }
# The rule for the column busbw, and the footer's average over all printed bandwidths.
bandwidths() {
  awk -v p="$1" '
    /^ +[0-9]+ +[0-9]+ / {
      for (c = 8; c <= 12; c += 4) {
        if ($c == "N/A") continue
        d = $c - $(c - 1) * (p - 1) / p
        if (d > 0.02 || d < -0.02) wrong = 1
        sum += $c
        ++count
      }
    }
    /^# Avg bus bandwidth/ { average = $6 }
    END { d = count ? sum / count - average : 1; exit wrong || d > 0.02 || d < -0.02 }' "$work/out" ||
    fail "busbw is not algbw * (P - 1) / P, or its average not that of the rows, at $1 ranks"
  ! grep -qi nan "$work/out" || fail "NaN"
}
valid_json() {
  command -v python3 >/dev/null || { echo "SKIPPED: python3 is not installed"; exit 4; }
  python3 -m json.tool "$1" >/dev/null || fail "$1 is not JSON"
}
# One row of 1 KiB at -d float: the sequence scales by 1 KiB rows.
small=(--heads 4 --head-dim 64 -n 2 -w 1)

case $case_name in
  sizes)
    run 0 "$perf" -t 2 -b 64M -e 70M -i 2M -n 1 -w 0 -c 0
    [[ $(rows) == 4 ]] || fail "$(rows) rows"
    run 0 "$perf" -t 2 -b 1K -e 16K -f 2 "${small[@]}"
    [[ $(rows) == 5 ]] || fail "$(rows) rows"
    [[ $(field 1 | xargs) == "1024 2048 4096 8192 16384" ]] || fail "sizes"
    run 0 "$perf" -t 2 -b 1K -e 2K -f 1 -i 1K "${small[@]}"
    [[ $(rows) == 2 ]] || fail "$(rows) rows"
    ;;
  usage_errors)
    for arguments in "-e 8 -b 16" "-b 8q" "-b -1" "-f 0" "-b 0 -e 1K -f 2" "-b 0 -e 1K -i 0" "-b 1K -e 64K -f -2" \
      "--no-such-option" "stray" "-g 2" "-t 0" "-n -1" "-c x" "-d int7" "-b 99999999999999999999" "--shape nothing" \
      "--seq 0" "--seq 8 -b 1K" "--direction up" "--out there" "--baseline --latency" \
      "--batch 1099511627776 --seq 1099511627776" "--latency --batch 4294967296 --heads 4294967296" "-b 0 -e 64G -i 1" \
      "-G 2" "--cold" "--memory device" "--memory vram"; do
      # shellcheck disable=SC2086
      run nonzero timeout 20 "$perf" -t 2 $arguments
      [[ $(wc -l <"$work/err") == 1 && ! -s $work/out ]] || fail "not one message: $arguments"
    done
    ;;
  no_iterations)
    run 0 "$perf" -t 2 -b 4K -e 4K "${small[@]}" -n 0 -w 0
    [[ $(rows) == 1 ]] || fail "$(rows) rows"
    ! grep -qi nan "$work/out" || fail "NaN"
    ;;
  unchecked)
    run 0 "$damaged" -t 2 -b 4K -e 4K "${small[@]}" -c 0
    [[ $(field 9) == N/A ]] || fail "#wrong is $(field 9)"
    ;;
  damaged)
    run 0 "$damaged" -t 4 -b 4K -e 4K "${small[@]}"
    [[ $(field 9) == 0 ]] || fail "#wrong is $(field 9)"
    has "# Out of bounds values : 0 OK"
    ULYSSES_TEST_CORRUPT_RANK=2 run nonzero "$damaged" -t 4 -b 4K -e 4K "${small[@]}"
    [[ $(field 9) == 1 ]] || fail "#wrong is $(field 9)"
    has "# Out of bounds values : 1 FAILED"
    ;;
  flat_damaged)
    for binary in all_gather_perf alltoall_perf param_gather_perf; do
      spoiled=$damaged_flat/${binary}_damaged
      run 0 "$spoiled" -t 4 -b 4K -e 4K -n 1
      has "# Out of bounds values : 0 OK"
      ULYSSES_TEST_CORRUPT_RANK=2 run nonzero "$spoiled" -t 4 -b 4K -e 4K -n 1
      [[ $code == 1 && $(field 9) == 1 ]] || fail "exit code $code, #wrong is $(field 9)"
      has "FAILED"
      ULYSSES_TEST_CORRUPT_RANK=2 run 0 "$spoiled" -t 4 -b 4K -e 4K -n 1 -c 0
      [[ $(field 9) == N/A ]] || fail "#wrong is $(field 9)"
    done
    ;;
  json_on_stdout)
    run 0 "$perf" -t 4 -b 4K -e 8K -f 2 "${small[@]}" -J -
    valid_json "$work/out"
    grep -q '"nwrong": 0' "$work/out" || fail "no result"
    ;;
  json_unwritable)
    run nonzero "$perf" -t 2 -b 4K -e 4K "${small[@]}" -J "$work/missing/file.json"
    has "missing/file.json" err
    run 0 "$perf" -t 2 -b 4K -e 4K "${small[@]}" -J "$work/file.json"
    run 0 "$perf" -t 2 -b 4K -e 4K "${small[@]}" -J "$work/file.json"
    valid_json "$work/file.json"
    valid_json "$work/file.json.0"
    ;;
  bus_bandwidth)
    for ranks in 1 2 4; do
      run 0 "$perf" -t $ranks -b 1M -e 8M -f 2 -n 3 -w 1
      bandwidths $ranks
    done
    ;;
  demanded_bandwidth)
    # nccl-tests' variable: below nine tenths of it is a failure.
    NCCL_TESTS_MIN_BW=0 run 0 "$perf" -t 2 -b 4K -e 4K "${small[@]}" -J "$work/ok.json"
    grep -qE '^# Avg bus bandwidth +: [0-9.e-]+ OK' "$work/out" || fail "not OK"
    NCCL_TESTS_MIN_BW=1000000 run nonzero "$perf" -t 2 -b 4K -e 4K "${small[@]}" -J "$work/slow.json"
    [[ $code == 1 ]] || fail "exit code $code"
    grep -qE '^# Avg bus bandwidth +: [0-9.e-]+ FAILED' "$work/out" || fail "not FAILED"
    grep -q '"okay": "false"' "$work/slow.json" || fail "JSON"
    ;;
  json_keys)
    # Those of nccl-tests, where it has them.
    run 0 "$flat/all_gather_perf" -t 2 -b 1K -e 2K -f 2 -n 3 -I 1 -J "$work/file.json"
    valid_json "$work/file.json"
    python3 - "$work/file.json" <<'CHECK' || fail "keys"
import json, sys
d = json.load(open(sys.argv[1]))
top = "version start_time end_time args env nccl_version config results out_of_bounds average_bus_bandwidth errors"
assert set(top.split()) <= set(d), set(top.split()) - set(d)
config = ("nthreads ngpus minimum_bytes maximum_bytes step_factor warmup_iters iterations aggregated_iterations "
          "validation graph blocking_collectives per_iter_timing parallel_init devices")
assert set(config.split()) <= set(d["config"]), d["config"]
assert len(d["config"]["devices"]) == 2
assert set("rank group pid hostname device device_hex device_info".split()) <= set(d["config"]["devices"][0])
assert [r["size"] for r in d["results"]] == [1024, 2048]
row = d["results"][0]
keys = "size count type redop root out_of_place in_place actual_iterations experiment_name path reason chunks"
assert set(keys.split()) <= set(row), row
assert set("time alg_bw bus_bw nwrong completion_us".split()) <= set(row["in_place"])
single = row["out_of_place_per_iter"]
assert len(single["times_us"]) == 3
assert single["min_us"] <= single["p50_us"] <= single["p99_us"] <= single["max_us"]
assert d["out_of_bounds"] == {"count": 0, "okay": "true"}
assert d["average_bus_bandwidth"]["okay"] == "unchecked"
CHECK
    ;;
  expect_ranks)
    run 0 "$perf" "${small[@]}" -b 4K -e 4K --expect-ranks 1
    [[ $(grep -c '^#  Rank' "$work/out") == 1 ]] || fail "not one rank in the header"
    run nonzero "$perf" "${small[@]}" -b 4K -e 4K --expect-ranks 4
    has "--expect-ranks 4" err
    ;;
  shapes)
    run 0 "$perf" -t 2 -b 64K -e 64K --shape flux1-1024,cogvideox-5b -n 1 --direction both
    [[ $(field 1 | xargs) == "61440 61440 61440 61440" && $(field 3 | sort -u) == bfloat16 ]] || fail "$(field 1) $(field 3)"
    has "exchange flux1-1024,cogvideox-5b: batch 1 seq scaled heads 24 headDim 128 batch 1 seq scaled heads 48 headDim 64"
    run nonzero "$perf" -t 2 --shape flux1-1024,none
    has "no geometry 'none'" err
    ;;
  size_column)
    # Rows of 4 x 64 x 4 = 1024 bytes: 4000 bytes are three of them per rank.
    run 0 "$perf" -t 2 -b 4000 -e 4000 "${small[@]}" --direction both
    [[ $(field 1 | xargs) == "3072 3072" && $(field 2 | xargs) == "768 768" ]] || fail "$(field 1) $(field 2)"
    run 0 "$perf" -t 2 -b 1000 -e 1000 "${small[@]}"
    [[ $(field 1) == 0 ]] || fail "$(field 1)"
    ;;
  datatypes)
    run 0 "$perf" -t 3 --seq 10 --heads 5 --head-dim 3 -d all -n 1 -w 0 --direction both
    [[ $(rows) == 24 ]] || fail "$(rows) rows"
    ;;
  uneven)
    run 0 "$perf" -t 3 --batch 2 --seq 1001 --heads 7 --head-dim 5 -d half --direction both -n 2
    run 0 "$perf" -t 4 --seq 2 --heads 4 --head-dim 8 --direction both -n 2
    ;;
  plain_output)
    run 0 "$perf" -t 4 -b 1K -e 4M -f 16 --heads 4 --head-dim 64 -n 2 --out plain --direction both
    ;;
  baseline)
    run 0 "$perf" -t 2 -b 4M -e 4M -n 1 --baseline --rounds 2 -J "$work/result.json"
    has "direct against plain copy"
    valid_json "$work/result.json"
    ;;
  latency)
    run 0 "$perf" -t 2 --latency --rounds 2 --calls 10
    has "Latency: 1024 bytes per rank, 2 ranks"
    ;;
  agreement)
    run 0 "$perf" -t 2 --agreement --calls 100
    has "median"
    ;;
  flat)
    for binary in all_gather_perf alltoall_perf; do
      run 0 "$flat/$binary" -t 2 -b 8 -e 128 -f 2
      [[ $(rows) == 5 ]] || fail "$(rows) rows"
      run 0 "$flat/$binary" -t 3 -b 48 -e 3M -f 8 -n 2 -d bfloat16
      run 0 "$flat/$binary" -t 4 -b 1M -e 1M -n 2 -d all --out plain --baseline --rounds 2
      [[ $(rows) == 12 ]] || fail "$(rows) rows"
      run nonzero "$flat/$binary" -b 8q
    done
    run 0 "$flat/all_gather_perf" -t 4 -b 64K -e 64K -n 2
    # out of place, then in place
    [[ $(field 9) == 0 && $(field 13) == 0 ]] || fail "#wrong is $(field 9), $(field 13)"
    ;;
  flat_promises)
    for binary in all_gather_perf alltoall_perf; do
      run 0 "$flat/$binary" -t 2 -b 64M -e 70M -i 2M -n 1 -w 0 -c 0
      [[ $(rows) == 4 && $(field 9 | sort -u) == N/A ]] || fail "$(rows) rows, #wrong is $(field 9)"
      for arguments in "-e 8 -b 16" "-b -1" "-f 0" "-b 0 -e 1K -f 2" "--no-such-option" "-g 2" "-d int7"; do
        # shellcheck disable=SC2086
        run nonzero timeout 20 "$flat/$binary" -t 2 $arguments
        [[ $(wc -l <"$work/err") == 1 && ! -s $work/out ]] || fail "not one message: $arguments"
      done
      run 0 "$flat/$binary" -t 2 -b 1K -e 2K -f 1 -i 1K -n 0 -w 0
      [[ $(rows) == 2 ]] || fail "$(rows) rows"
      ! grep -qi nan "$work/out" || fail "NaN"
      for ranks in 1 2 4; do
        run 0 "$flat/$binary" -t $ranks -b 1M -e 4M -f 2 -n 3 -w 1
        bandwidths $ranks
      done
      run 0 "$flat/$binary" -b 4K -e 4K -n 1 --expect-ranks 1
      [[ $(grep -c '^#  Rank' "$work/out") == 1 ]] || fail "not one rank in the header"
      run nonzero "$flat/$binary" -b 4K -e 4K -n 1 --expect-ranks 4
      has "--expect-ranks 4" err
      run 0 "$flat/$binary" -t 4 -b 4K -e 8K -f 2 -n 1 -J -
      valid_json "$work/out"
      run nonzero "$flat/$binary" -t 4 -b 4K -e 4K -n 1 -J "$work/missing/file.json"
      has "missing/file.json" err
    done
    ;;
  nccl_options)
    for binary in ulysses_a2a_perf all_gather_perf alltoall_perf; do
      run 0 "$flat/$binary" -t 2 -b 4K -e 4K -n 2 -w 1 -m 2 -N 1 -c 1 -a 3 -z 1 -C 1 -S 1 -M 1 -p 0 -y 0 -o sum -r 0 \
        -R 0 -D 0 -G 0 -d float -T 60 -g 1
      # The options without effect say so; those with one show it.
      for text in "# -p 0 changes nothing" "# -y 0 changes" "# -o sum changes" "# -r 0 changes" "# out plain" "cputime" \
        "# Blocking Enabled: wait for completion and barrier" "timestamp" "# Host memory usage"; do
        [[ $binary == ulysses_a2a_perf && $text == "# out plain" ]] || has "$text"
      done
      [[ $(rows) == 1 && $(field 9) == 0 ]] || fail "$(rows) rows, #wrong is $(field 9)"
    done
    run 0 "$flat/all_gather_perf" -t 2 -b 4K -e 4K -n 1 -R 2
    has "# out window"
    run 0 "$flat/all_gather_perf" --help
    has "--report_cputime"
    ;;
  refused_options)
    for binary in ulysses_a2a_perf all_gather_perf alltoall_perf; do
      for arguments in "-G 1" "-D 1" "-V 16" "-x 1" "-z 3" "-N -1" "-N 0 -J $work/never.json" "-o median" "-r one" \
        "-R 3" "-R 0 --out window" "-R 1 --out plain" "-u -1" "-I 2" "-J $work/table.csv" "-J - --csv -" \
        "--csv $work/missing/t.csv"; do
        # shellcheck disable=SC2086
        run nonzero timeout 20 "$flat/$binary" -t 2 -b 1K -e 1K -n 1 $arguments
        [[ $(wc -l <"$work/err") == 1 && ! -s $work/out ]] || fail "not one message: $arguments"
      done
      NCCL_TESTS_SPLIT="MOD 2" run nonzero "$flat/$binary" -t 2 -b 1K -e 1K
      has "NCCL_TESTS_SPLIT" err
    done
    # A mode refuses what it would not read.
    for arguments in "--latency -n 5" "--latency -e 8K" "--agreement -c 2" "--latency --csv $work/t.csv"; do
      # shellcheck disable=SC2086
      run nonzero "$perf" -t 2 $arguments
      has "excludes" err
    done
    run nonzero "$flat/param_gather_perf" -t 2 --model wan14b --scale 1/65536 -n 5
    has "excludes" err
    ;;
  per_iteration)
    run 0 "$flat/all_gather_perf" -t 2 -b 4K -e 4K -n 5 -I 1
    # i_min <= i_p99 <= i_max, out of place and in place.
    awk '/^ +[0-9]+ +[0-9]+ /{ok = $10 <= $12 && $12 <= $11 && $18 <= $20 && $20 <= $19} END {exit !ok}' "$work/out" ||
      fail "columns of the single calls"
    ;;
  cycles)
    run 0 "$flat/alltoall_perf" -t 2 -b 1K -e 2K -f 2 -n 1 -N 3
    [[ $(field 1 | xargs) == "1024 2048 1024 2048 1024 2048" ]] || fail "$(field 1)"
    ;;
  unaligned)
    for out in window plain; do
      run 0 "$perf" -t 3 -b 4K -e 1M -f 16 --heads 4 --head-dim 64 -n 1 -u 3 --out $out -d all --direction both
      for binary in all_gather_perf alltoall_perf; do
        run 0 "$flat/$binary" -t 3 -b 4K -e 1M -f 16 -n 1 -u 3 --out $out -d all
      done
    done
    ;;
  csv)
    run 0 "$flat/all_gather_perf" -t 2 -b 1K -e 4K -f 2 -n 1 --csv "$work/table.csv" --lib "$library"
    # A head; then per size in place and out of place, in each of two builds.
    [[ $(wc -l <"$work/table.csv") == 13 ]] || fail "lines"
    head -n 1 "$work/table.csv" | grep -q '^size,count,type,redop,root,placement,build,time_us,algbw,busbw,wrong,' ||
      fail "head"
    [[ $(grep -c '^1024,128,float,none,-1,out_of_place,this,' "$work/table.csv") == 1 ]] || fail "row"
    run 0 "$perf" -t 2 -b 4K -e 4K "${small[@]}" --csv -
    [[ $(wc -l <"$work/out") == 2 ]] || fail "not a table alone on stdout"
    ;;
  lib)
    # A copy is another file, so another library: its own state, its own entry points.
    cp "$library" "$work/libother.so"
    for binary in ulysses_a2a_perf all_gather_perf alltoall_perf param_gather_perf; do
      run 0 "$flat/$binary" -t 2 -b 4K -e 64K -f 16 -n 3 --lib "$work/libother.so" -J "$work/$binary.json"
      has "# In turns with --lib"
      [[ $(rows) == 2 ]] || fail "$(rows) rows"
      # Time, #wrong and ratio come after variant, path, chunks and e2e.
      awk '/^ +[0-9]+ +[0-9]+ /{if (!($18 > 0 && $19 == 0 && $20 > 0)) wrong = 1} END {exit wrong}' "$work/out" ||
        fail "no times of the other build"
      valid_json "$work/$binary.json"
      grep -q '"ratio"' "$work/$binary.json" || fail "no ratio"
    done
    # What the other build gets wrong counts as well.
    ULYSSES_TEST_CORRUPT_RANK=1 run nonzero "$damaged" -t 2 -b 4K -e 4K "${small[@]}" --lib "$work/libother.so"
    has "# Out of bounds values : 2 FAILED"
    ;;
  lib_modes)
    cp "$library" "$work/libother.so"
    run 0 "$perf" -t 2 -b 64K -e 64K "${small[@]}" --baseline --rounds 2 --lib "$work/libother.so"
    has "direct against direct, --lib"
    run 0 "$perf" -t 2 --latency --rounds 2 --calls 10 --lib "$work/libother.so"
    has "as fast as --lib"
    run 0 "$flat/alltoall_perf" -t 2 -b 64K -e 64K -n 1 --baseline --rounds 2 --lib "$work/libother.so"
    has "window against window, --lib"
    run nonzero "$perf" -t 2 --agreement --lib "$work/libother.so"
    has "excludes" err
    ;;
  lib_errors)
    run nonzero "$perf" -t 2 -b 4K -e 4K --lib "$work/missing.so"
    has "missing.so" err
    echo "no library" >"$work/text.so"
    run nonzero "$perf" -t 2 -b 4K -e 4K --lib "$work/text.so"
    has "text.so" err
    [[ $code == 2 ]] || fail "exit code $code"
    ;;
  progress)
    run 0 "$flat/all_gather_perf" -t 2 -b 4M -e 4M -n 200 --progress 0.02
    grep -qE '^all_gather_perf: [0-9]+ s: row 1 of 1, 4194304 bytes( in place)?: (warming up|timing|checking)$' \
      "$work/err" || fail "no progress"
    run 0 "$flat/all_gather_perf" -t 2 -b 4K -e 4K -n 1
    [[ ! -s $work/err ]] || fail "progress of a short run"
    ;;
  memory)
    # A terabyte per rank is more than there is: cut to what there is, and 1 TB is then no size any more.
    run 0 "$flat/all_gather_perf" -t 2 -b 1K -e 1024G -f 1073741824 -n 1
    has "# Reducing maxBytes to"
    [[ $(field 1) == 1024 ]] || fail "sizes $(field 1)"
    run nonzero "$flat/all_gather_perf" -t 2 -b 1024G -e 1024G
    has "memory" err
    ;;
  parameters)
    run 0 "$flat/param_gather_perf" -t 3 -b 0 -e 64K -i 32K -n 2
    [[ $(rows) == 3 && $(field 9 | sort -u) == 0 ]] || fail "$(rows) rows, #wrong is $(field 9)"
    has "# A hit: Acquire"
    run 0 "$flat/param_gather_perf" -t 2 -b 64K -e 64K -n 1 -d half --baseline --rounds 2
    has "parameter gather against plain copy"
    ;;
  peer_copies)
    run 0 "$flat/peer_copy_perf" -t 3 -b 64K -e 1M -f 16 -n 2 -J "$work/json"
    [[ $(rows) == 22 && $(field 9 | sort -u) == 0 ]] || fail "$(rows) rows, #wrong is $(field 9)"
    has "# GB/s of 65536 bytes, a pair at a time, from row to column"
    valid_json "$work/json"
    python3 - "$work/json" <<'PYTHON' || fail "not the pairs' JSON"
import json, sys
run = json.load(open(sys.argv[1]))
assert [p["size"] for p in run["pairs"]] == [65536, 1048576]
assert all(len(row) == 3 and all(x > 0 for x in row) for p in run["pairs"] for row in p["gb_per_s"])
assert [r["variant"] for r in run["results"]][:11] == ["0>0", "0>1", "0>2", "1>0", "1>1", "1>2", "2>0", "2>1", "2>2", "next", "all"]
assert run["results"][0]["size"] == 65536
assert run["results"][10]["size"] == 65520  # whole elements for everyone
PYTHON
    run 0 "$flat/peer_copy_perf" -n 1 -b 4K -e 4K
    [[ $(rows) == 1 ]] || fail "$(rows) rows for one rank"
    ULYSSES_TEST_CORRUPT_RANK=2 run nonzero "$damaged_flat/peer_copy_perf_damaged" -t 3 -b 4K -e 4K -n 1
    [[ $code == 1 && $(field 9 | sort -n | tail -1) == 1 ]] || fail "exit code $code, #wrong is $(field 9)"
    for refused in "--lib $library" "-d half" "-N 0"; do
      # shellcheck disable=SC2086
      run nonzero "$flat/peer_copy_perf" -t 2 $refused
      [[ $(grep -c "^peer_copy_perf: ${refused%% *}" "$work/err") == 1 ]] || fail "not one message about $refused"
    done
    ;;
  mpi_lib)
    cp "$library" "$work/libother.so"
    run 0 mpi -n 2 "$flat/all_gather_perf" -b 64K -e 64K -n 3 --lib "$work/libother.so"
    has "# In turns with --lib"
    run nonzero mpi -n 2 "$flat/all_gather_perf" -b 64K -e 64K --lib "$work/missing.so"
    [[ $(grep -c 'missing.so' "$work/err") == 1 ]] || fail "not one message"
    ;;
  mpi_parameters)
    run 0 mpi -n 2 "$flat/param_gather_perf" -b 64K -e 64K -n 1 --baseline --rounds 2
    has "parameter gather against MPI_Allgather"
    ;;
  mpi_flat)
    for binary in all_gather_perf alltoall_perf; do
      run 0 mpi -n 4 "$flat/$binary" -b 64K -e 64K -n 2 --baseline --rounds 2
      has "window against MPI_All"
    done
    ;;
  mpi)
    run 0 mpi -n 4 "$perf" -b 64K -e 64K "${small[@]}" --direction both --expect-ranks 4
    [[ $(rows) == 2 ]] || fail "$(rows) rows"
    run 0 mpi -n 2 "$perf" -t 2 -b 64K -e 64K "${small[@]}" --expect-ranks 4
    ;;
  mpi_json)
    run 0 mpi -n 4 "$perf" -b 4K -e 8K -f 2 "${small[@]}" -J -
    valid_json "$work/out"
    ;;
  mpi_baseline)
    # Geometries that need pack, unpack, both, and blocks that differ by rank.
    run 0 mpi -n 2 "$perf" --batch 2 --seq 64 --heads 4 --head-dim 32 -n 1 --direction both --baseline --rounds 2
    has "direct against MPI_Alltoallw"
    run 0 mpi -n 3 "$perf" --seq 100 --heads 4 --head-dim 32 -n 1 --direction both --baseline --rounds 2
    has "staged against pack + MPI_Alltoall"
    ;;
  mpi_latency)
    run 0 mpi -n 2 "$perf" --latency --rounds 2 --calls 100
    has "MPI_Alltoall's time"
    ! grep -q ' 0\.00 x' "$work/out" || fail "a ratio of zero"
    ;;
  mpi_usage_error)
    run nonzero mpi -n 2 "$perf" -b 8q
    [[ $(grep -c 'not a size' "$work/err") == 1 ]] || fail "not one message"
    ;;
  mpi_stopped)
    # A rank that is stopped in the middle does not come to the run's own meetings either.
    export ULYSSES_DUMP_DIR=off
    mpi -n 2 "$flat/alltoall_perf" -b 64K -e 64K -n 100000000 -c 0 -T 2 >"$work/out" 2>"$work/err" &
    job=$!
    for ((i = 0; i < 300; ++i)); do
      pid=$(awk '/ Rank  1 / {print $7}' "$work/out")
      [[ -z $pid ]] || break
      sleep 0.1
    done
    sleep 1
    kill -STOP "$pid"
    code=0
    wait "$job" || code=$?
    [[ $code == 2 ]] || fail "exit code $code"
    has 'rank 1 did not make the call before the deadline' err
    ;;
  *)
    fail "no case $case_name"
    ;;
esac
