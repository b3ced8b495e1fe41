#!/bin/sh
# The functions that the headers declare, and those that a library exports, are those of a checked-in list.
#   symbols.sh declared LIST HEADER...
#   symbols.sh exported LIST NM LIBRARY
# An exported ulyssesInternalTransport_v1, through which the parts of the library find each other, may be missing or there.
set -eu
export LC_ALL=C
mode=$1 list=$2
shift 2
found=$(mktemp)
trap 'rm -f "$found"' EXIT
case $mode in
  declared) cat "$@" | sed -n 's/^ULYSSES_API [A-Za-z_ ]*[ *]*\(ulysses[A-Za-z0-9_]*\)(.*/\1/p' | sort > "$found" ;;
  exported) "$1" -D --defined-only "$2" | awk '{print $3}' | grep -vx ulyssesInternalTransport_v1 | sort > "$found" ;;
  *) echo "symbols.sh: no mode $mode" >&2; exit 2 ;;
esac
if ! diff "$list" "$found"; then
  echo "The symbols $mode (>) are not those of $list (<). Removing or renaming one breaks programs; add new ones to the list." >&2
  exit 1
fi
