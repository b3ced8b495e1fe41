#!/usr/bin/env bash
# Installs a build, moves the installation to a path with a space, and uses it as a stranger would.
#   check.sh cmake BUILD LIBDIR COMPONENTS [CUDA]   find_package, from C alone and from C and C++; a toolkit for CUDA's user
#   check.sh pkg-config BUILD LIBDIR MPICC          one line of the compiler: shared, --as-needed, only the archive, mpicc
#   check.sh cpack BUILD LIBDIR GENERATOR           TGZ or DEB: what is in the package
# CMAKE, CC and CXX in the environment name the tools. Exit code 77: skipped, the reason is printed.
set -euo pipefail
mode=$1 build=$2 libdir=$3 choice=${4:-} cuda=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix="$work/moved prefix"
unset LD_LIBRARY_PATH
export LD_BIND_NOW=1  # a symbol that is not there fails at the start

# With the output of the tool that ran last.
fail() {
  if [[ -f $work/log ]]; then cat "$work/log"; fi
  echo "FAILED: $*" >&2
  exit 1
}

install_and_move() {
  "$CMAKE" --install "$build" --prefix "$work/first" >/dev/null
  mv "$work/first" "$prefix"
  # Nothing that an outside project reads may know where the build or the first installation was.
  if grep -rnF -e "$build" -e "$work/first" "$prefix/$libdir/cmake" "$prefix/$libdir/pkgconfig"; then
    fail "the package has paths of this machine"
  fi
  check_shared_library "$prefix/$libdir/libulysses.so"
}

# With CUDA too it runs where there is neither driver nor toolkit, and shows nothing but the C API.
check_shared_library() {
  readelf -d "$1" >"$work/log"
  if grep 'NEEDED.*lib\(cuda\|nccl\|nvidia\)' "$work/log"; then fail "$1 needs CUDA's libraries"; fi
  if grep 'R\(UN\)\?PATH' "$work/log"; then fail "$1 searches in paths of this machine"; fi
  nm -D --defined-only "$1" | awk '$3 !~ /^ulysses/' >"$work/log"
  if [[ -s $work/log ]]; then fail "$1 exports other symbols than ulysses*"; fi
}

needs_libulysses() { readelf -d "$1" | grep 'NEEDED.*libulysses\.so' >/dev/null; }

consume_by_cmake() {
  local languages
  for languages in C "C;CXX"; do
    "$CMAKE" -S "$here/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_LANGUAGES="$languages" \
      -DCONSUMER_COMPONENTS="$choice" ${cuda:+-DCUDAToolkit_ROOT="$cuda"} -DCMAKE_C_COMPILER="$CC" ${CXX:+-DCMAKE_CXX_COMPILER="$CXX"} \
      --no-warn-unused-cli >"$work/log" 2>&1 || fail "configuring for $languages"
    "$CMAKE" --build "$work/build" >"$work/log" 2>&1 || fail "building for $languages"
    (cd "$work/build" && ctest --output-on-failure)
  done
  if needs_libulysses "$work/build/gather_static"; then fail "gather_static needs libulysses.so"; fi
  if "$CMAKE" -S "$here/consumer" -B "$work/other" -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_COMPONENTS=unheard-of \
    -DCMAKE_C_COMPILER="$CC" >"$work/log" 2>&1; then
    fail "a component that does not exist was found"
  fi
  tr -s ' \n' ' ' <"$work/log" | grep "there is no component unheard-of" >/dev/null || fail "no reason is given"
}

# compile NAME COMPILER SOURCE PACKAGE [LINKER OPTION or --static]: as the shell reads it, the flags escape the space.
compile() {
  local name=$1 compiler=$2 source=$3 package=$4 option=${5:-} flags static=
  if [[ $option == --static ]]; then static=--static option=; fi
  flags=$(pkg-config $static --cflags --libs "$package")
  eval "$compiler -o \"$work/$name\" \"$here/consumer/$source\" $option $flags -pthread" || fail "$name: $flags"
}

consume_by_pkg_config() {
  export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
  export LD_LIBRARY_PATH="$prefix/$libdir"
  compile gather "$CC" gather.c ulysses
  "$work/gather"
  compile exchange "$CXX" exchange.cc ulysses
  "$work/exchange"
  compile as_needed "$CC" gather.c ulysses -Wl,--as-needed
  "$work/as_needed"
  needs_libulysses "$work/as_needed" || fail "--as-needed dropped libulysses.so"
  if [[ -n $choice ]]; then
    compile mpi_gather "$choice" mpi_gather.c ulysses_mpi
    mpirun --oversubscribe --allow-run-as-root -n 2 "$work/mpi_gather"
  fi

  rm "$prefix/$libdir"/lib*.so*
  unset LD_LIBRARY_PATH
  compile archive "$CC" gather.c ulysses --static
  "$work/archive"
  compile archive_cxx "$CXX" exchange.cc ulysses --static
  "$work/archive_cxx"
}

check_package() {
  local list file
  (cd "$build" && cpack -G "$choice" -B "$work/packages" >"$work/log" 2>&1) || fail "cpack -G $choice"
  case $choice in
    TGZ) list=$(tar -tzf "$work"/packages/*.tar.gz) ;;
    DEB) list=$(dpkg-deb -c "$work"/packages/*.deb)
         dpkg-deb -f "$work"/packages/*.deb Package Depends
         dpkg-deb -f "$work"/packages/*.deb Depends | grep libhwloc >/dev/null || fail "no dependency on hwloc" ;;
  esac
  for file in include/ulysses/ulysses.h include/ulysses/version.h "$libdir/libulysses.so" "$libdir/libulysses.a" \
    "$libdir/cmake/ulysses/ulysses-config.cmake" "$libdir/pkgconfig/ulysses.pc"; do
    grep -q "/$file\( ->.*\)\?$" <<<"$list" || { echo "$list"; fail "$file is not in the package"; }
  done
}

case $mode in
  cmake) install_and_move; consume_by_cmake ;;
  pkg-config) install_and_move; consume_by_pkg_config ;;
  cpack)
    if [[ $choice == DEB ]] && ! command -v dpkg-deb >/dev/null; then echo "skipped: no dpkg here"; exit 77; fi
    check_package ;;
  *) echo "check.sh: no mode $mode" >&2; exit 2 ;;
esac
