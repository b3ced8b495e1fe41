"""Result files for the tests of the scripts."""
import json


def block(us, size, wrong=0):
    return {"time": us, "alg_bw": size / us / 1e3, "bus_bw": size / us / 2e3, "nwrong": wrong}


def row(size, us, in_place=None, lib=None, wrong=0, variant="-"):
    result = {"size": size, "count": size // 4, "type": "float", "redop": "none", "root": "-1", "variant": variant,
              "path": "direct", "out_of_place": block(us, size, wrong),
              "in_place": block(in_place, size) if in_place else None}
    if lib:
        result["lib"] = {"path": "direct", "out_of_place": dict(block(lib, size), ratio=lib / us)}
    return result


def write(path, rows, **more):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 2, "results": rows, **more}, file)
    return path


BASELINE = [{"variant": "scatter", "size": 4096, "type": "float", "ranks": 2, "rounds": 3,
             "ways": {"direct": {"median_us": 10.0}, "plain copy": {"median_us": 5.0}}}]
