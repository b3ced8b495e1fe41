#!/bin/sh
# Checks a Promela model with spin.
#
#   run_model.sh MODEL           every case of MODEL must verify: a full search without errors
#   run_model.sh MODEL CASE      that case must verify
#   run_model.sh MODEL NUMBER    that mutant (one changed line) must be rejected
#
# Cases and mutants are the `case` and `mutant` lines at the head of MODEL.pml. Exit status: 0 as it must be, 1 not so,
# 4 skipped because spin or a C compiler is missing.
set -eu

folder=$(cd "$(dirname "$0")" && pwd)
model=$1
what=${2:-}
source=$folder/$model.pml
compiler=${CC:-cc}

for tool in spin "$compiler"; do
  if ! command -v "$tool" > /dev/null; then
    echo "skipped: $tool is not installed"
    exit 4
  fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The text after the colon of the line `KIND NAME...:`.
entry() {
  sed -n "s/^ \* $1: *//p" "$source"
}

# check NAME OPTIMISATION DEFINITIONS...: the verifier's report goes to $work/report.
check() {
  name=$1
  optimisation=$2
  shift 2
  cd "$work"
  spin "$@" -a "$source" > spin.log || { cat spin.log; return 1; }
  # No loop of the models comes back to a state it has been in, so that every run ends where no state is a deadlock: a
  # safety search is enough.
  "$compiler" "$optimisation" -w -DSAFETY -DMEMLIM=1900 -o pan pan.c
  ./pan -m100000 > report 2>&1 || true
  errors=$(sed -n 's/.*\(errors: [0-9]*\).*/\1/p' report)
  states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1 states/p' report)
  echo "$model $name: $errors, $states"
}

verify() {
  definitions=$(entry "case $1")
  if [ -z "$definitions" ]; then
    echo "$model has no case $1"
    exit 1
  fi
  check "$1" -O1 $definitions
  if ! grep -q 'errors: 0$' report || grep -q -i 'search depth too small\|not completed\|out of memory' report; then
    cat report
    echo "$model $1: not verified"
    exit 1
  fi
}

reject() {
  line=$(sed -n "s/^ \* mutant $1 //p" "$source")
  if [ -z "$line" ]; then
    echo "$model has no mutant $1"
    exit 1
  fi
  check "mutant $1 ($(echo ${line#*:}))" -O0 $(entry "case ${line%%:*}") -DMUTANT="$1"
  if ! grep '^pan:1: \(assertion violated\|invalid end state\)' report; then
    cat report
    echo "$model mutant $1: not rejected"
    exit 1
  fi
}

case $what in
  '') for name in $(sed -n 's/^ \* case \([a-z0-9]*\):.*/\1/p' "$source"); do verify "$name"; done ;;
  [0-9]*) reject "$what" ;;
  *) verify "$what" ;;
esac
