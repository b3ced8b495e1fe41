#!/usr/bin/env python3
"""Makes one ctest directory of the tests of several builds: combine_tests.py OUT NAME=BUILD...

The first build gives all of its tests. Those with sanitizers give what a sanitizer can tell something about: no models,
packages, ABI or soak, and of the programs around the library those of the first build alone. The one with CUDA gives what its
library changes, so packages and ABI as well, and on a machine without a GPU the reasons for which GPU tests are skipped.
"""
import json
import pathlib
import subprocess
import sys

LEFT_OUT = {"cuda": "model|perf|example|soak"}
LEFT_OUT_BY_SANITIZERS = "model|abi|package|perf|example|soak"


def quoted(text):
    return f"[==[{text}]==]"


def tests_of(build, exclude):
    command = ["ctest", "--test-dir", build, "--show-only=json-v1"]
    if exclude:
        command += ["--label-exclude", exclude]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["tests"]


def property_text(value):
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, list):
        return ";".join(str(item) for item in value)
    return str(value)


def main():
    out = pathlib.Path(sys.argv[1])
    lines = []
    for index, argument in enumerate(sys.argv[2:]):
        name, build = argument.split("=", 1)
        for test in tests_of(build, LEFT_OUT.get(name, LEFT_OUT_BY_SANITIZERS) if index else ""):
            if "command" not in test:
                sys.exit(f"{build}: the test '{test['name']}' has not been built")
            title = quoted(f"{name}: {test['name']}")
            lines.append(f"add_test({title} {' '.join(quoted(word) for word in test['command'])})")
            properties = " ".join(
                f"{p['name']} {quoted(property_text(p['value']))}"
                for p in test.get("properties", [])
                if not p["name"].startswith("_")
            )
            if properties:
                lines.append(f"set_tests_properties({title} PROPERTIES {properties})")
    out.mkdir(parents=True, exist_ok=True)
    (out / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")


main()
