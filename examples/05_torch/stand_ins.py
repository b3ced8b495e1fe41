"""Puts stand-ins for NVIDIA's libraries beside torch's own: stand_ins.py SITE_PACKAGES

A torch built with CUDA loads only where these libraries are, though a program on host memory calls none of them. A
stand-in has the name, the versions and the symbols that torch asks for; whoever calls one of them is stopped. CUDA's
runtime is called while torch loads, so there has to be the real one.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

REAL = "libcudart.so", "libcuda.so"


def readelf(option, file):
    return subprocess.run(["readelf", "-W", option, file], check=True, capture_output=True, text=True).stdout


def main():
    lib = pathlib.Path(sys.argv[1]) / "torch" / "lib"
    wanted = {}  # library -> its version tag, or None
    symbols = {}  # version tag -> functions
    for file in sorted(lib.glob("*.so")):
        for name in re.findall(r"NEEDED.*\[(lib(?:cu|nccl|nv)[^]]*)\]", readelf("--dynamic", file)):
            if not name.startswith(REAL):
                wanted.setdefault(name, None)
        for name, tag in re.findall(r"File: (\S+) .*\n.*Name: (\S+)", readelf("--version-info", file)):
            if name in wanted:
                wanted[name] = tag
        for name, tag in re.findall(r" UND (\w+)(?:@(\S+))?", readelf("--dyn-syms", file)):
            if tag or re.match("nccl|cuFile|cusparseLt|cusolver", name):
                symbols.setdefault(tag or None, set()).add(name)

    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stand_in.s"), pathlib.Path(folder, "stand_in.map")
        for name, tag in wanted.items():
            functions = sorted(symbols.get(tag, ()))
            labels = "".join(f".globl {f}\n.type {f}, @function\n{f}:\n" for f in functions)
            source.write_text(f'.section .note.GNU-stack,"",@progbits\n.text\n{labels}ud2\n')
            script.write_text(f"{tag} {{ *; }};\n" if tag else "{ global: *; };\n")
            subprocess.run(
                ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}",
                 "-o", lib / name, source], check=True)  # fmt: skip


main()
