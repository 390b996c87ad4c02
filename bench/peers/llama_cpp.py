#!/usr/bin/env python3
"""millrace beside llama.cpp on this machine: the same GGUF files, the same threads, alternating runs, the best of several.

    bench/peers/llama_cpp.py --millrace build/release/millrace [--isa avx2] [--threads N] [--json]

llama.cpp comes as the source package llama-cpp-python and is compiled here (about 10 minutes on 2 cores, once), for this
processor or for AVX2 only. What is doubtful goes in its favour: both flash-attention settings run and the faster counts,
choosing the token is not charged to it, and the Python interpreter's memory is subtracted from its peak.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from packages import CACHE, CONVERTED, HERE, LLAMA_CPP, make_environment, model_files, say  # noqa: E402

DEFAULT_MODEL = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FORMATS = ["Q4_1", "Q4_0", "Q8_0", "F16"]
WORKLOADS = ["prefill", "decode"]

AVX512_OFF = ["AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI"]
AVX2_ON = ["AVX", "AVX2", "FMA", "F16C", "BMI2"]
CMAKE_ARGS = {
    "native": "-DGGML_NATIVE=ON",
    "avx2": " ".join(["-DGGML_NATIVE=OFF"] + [f"-DGGML_{x}=ON" for x in AVX2_ON] + [f"-DGGML_{x}=OFF" for x in AVX512_OFF]),
}


def peer_python(isa):
    """The interpreter of an environment that holds llama.cpp compiled for `isa`; built on the first call."""
    home = CACHE / "peers" / f"{LLAMA_CPP.replace('==', '-')}-{isa}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():
        say(f"compiling {LLAMA_CPP} for {isa} in {home}; its log is build.log there")
        make_environment(home)
        flags = f"{CMAKE_ARGS[isa]} -DCMAKE_BUILD_TYPE=Release -DLLAVA_BUILD=OFF"
        # --no-cache-dir: pip would hand the wheel of one instruction set to the other's environment.
        command = [python, "-m", "pip", "install", "--verbose", "--no-cache-dir", "--no-binary", "llama-cpp-python",
                   LLAMA_CPP, "numpy"]
        with open(home / "build.log", "w") as log:
            built = subprocess.run(command, env={**os.environ, "CMAKE_ARGS": flags}, stdout=log, stderr=subprocess.STDOUT)
        if built.returncode != 0:
            raise SystemExit(f"{LLAMA_CPP} did not compile: see {home / 'build.log'}")
        ready.touch()
    return python


def run_child(command):
    """(its JSON output, its peak resident bytes)."""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"exit status {child.returncode} from: {' '.join(map(str, command))}")
    return json.loads(output), usage.ru_maxrss * 1024


def run_llama_cpp(args, python, file, flash):
    command = [python, "-I", HERE / "llama_cpp_child.py", file, "--threads", args.threads, "--prefill", args.prefill,
               "--decode", args.decode, "--repeat", args.repeat, "--flash", flash]
    result, _ = run_child(command)
    return result


def millrace_command(args, file):
    isa = ["--isa", args.isa] if args.isa != "native" else []
    return [args.millrace, "bench", file, "--threads", args.threads, *isa, "--prefill", args.prefill, "--decode", args.decode,
            "--repeat", args.repeat, "--max-context", args.prefill + args.decode, "--json"]


def run_millrace(args, file):
    rows, peak = run_child(millrace_command(args, file))
    result = {"peak_bytes": peak}
    for row in rows:
        if row["workload"] in WORKLOADS:
            result[f"{row['workload']}_tokens_per_s"] = row["best_tokens_per_s"]
            result[f"{row['workload']}_share_of_limit"] = row["share_of_limit"]
    return result


def measure(args, python, files):
    """{format: {"llama.cpp": [runs], "millrace": [runs]}}"""
    runs = {f: {"llama.cpp": [], "millrace": []} for f in files}
    for turn in range(args.runs):
        for name, file in files.items():
            say(f"run {turn + 1} of {args.runs}: {name}")
            runs[name]["llama.cpp"].append(run_llama_cpp(args, python, file, "on"))
            if args.millrace:
                runs[name]["millrace"].append(run_millrace(args, file))
            runs[name]["llama.cpp"].append(run_llama_cpp(args, python, file, "off"))
    return runs


def summary(args, runs):
    """One row a format and workload: the best of each program, and millrace / llama.cpp."""
    rows = []
    for name, by_program in runs.items():
        for workload in WORKLOADS:
            key = f"{workload}_tokens_per_s"
            theirs = max(by_program["llama.cpp"], key=lambda run: run[key])
            row = {"format": name, "workload": workload, "tokens": getattr(args, workload), "llama_cpp_tokens_per_s": theirs[key],
                   "llama_cpp_flash_attention": theirs["flash"]}
            if args.millrace:
                ours = max(by_program["millrace"], key=lambda run: run[key])
                row |= {"millrace_tokens_per_s": ours[key], "ratio": ours[key] / theirs[key],
                        "share_of_limit": ours[f"{workload}_share_of_limit"]}
            rows.append(row)
        theirs = min(by_program["llama.cpp"], key=lambda run: run["peak_bytes"])
        row = {"format": name, "workload": "peak memory", "llama_cpp_bytes": theirs["peak_bytes"],
               "llama_cpp_mapped_file_bytes": theirs["mapped_file_bytes"]}
        if args.millrace:
            row["millrace_bytes"] = min(run["peak_bytes"] for run in by_program["millrace"])
            row["ratio"] = row["millrace_bytes"] / row["llama_cpp_bytes"]
        rows.append(row)
    return rows


def cpu_info():
    """(model name, vector extensions) from /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    field = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in lines if ":" in line}
    vector = [flag for flag in field.get("flags", "").split() if flag.startswith(("avx", "fma", "f16c", "amx"))]
    return field.get("model name", platform.processor()), " ".join(vector)


def describe(args, runs, load_before):
    model, vector = cpu_info()
    first = next(iter(runs.values()))["llama.cpp"][0]
    return {
        "cpu": model, "cores": os.cpu_count(), "vector": vector, "threads": args.threads, "isa": args.isa, "runs": args.runs,
        "repeat": args.repeat,
        "load_before": load_before[0], "load_after": os.getloadavg()[0],
        "llama_cpp": f"llama-cpp-python {first['version']}", "llama_cpp_build": CMAKE_ARGS[args.isa], "llama_cpp_system": first["system"],
        "command": shlex.join(["bench/peers/llama_cpp.py", *sys.argv[1:]]),
        "millrace_command": " ".join(map(str, millrace_command(args, "MODEL"))) if args.millrace else None,
    }


def markdown_row(*cells):
    return "| " + " | ".join(cells) + " |"


def speed_cells(row):
    cells = [row["format"], f"{row['workload']} {row['tokens']}", f"{row['llama_cpp_tokens_per_s']:.1f}"]
    if "ratio" in row:
        cells += [f"{row['millrace_tokens_per_s']:.1f}", f"{row['ratio']:.2f}", f"{100 * row['share_of_limit']:.0f} %"]
    return cells


def memory_cells(row):
    mib = 2.0**20
    cells = [row["format"], f"{row['llama_cpp_bytes'] / mib:.0f} ({row['llama_cpp_mapped_file_bytes'] / mib:.0f})"]
    if "ratio" in row:
        cells += [f"{row['millrace_bytes'] / mib:.0f}", f"{row['ratio']:.2f}"]
    return cells


def print_table(heads, rows):
    print("\n" + markdown_row(*heads) + "\n" + markdown_row(*["---"] * len(heads)))
    for cells in rows:
        print(markdown_row(*cells))


def print_markdown(rows, machine):
    both = machine["millrace_command"] is not None
    print(f"{machine['cpu']}, {machine['cores']} cores ({machine['vector']}); {machine['threads']} threads, {machine['isa']}; best of "
          f"{machine['runs']} alternating runs, {machine['repeat']} measurements in each; "
          f"load {machine['load_before']:.1f} before, {machine['load_after']:.1f} after.")
    print(f"{machine['llama_cpp']}, compiled with {machine['llama_cpp_build']}. `{machine['command']}`"
          + (f" runs `{machine['millrace_command']}`." if both else ""))
    print_table(["weights", "tokens", "llama.cpp tok/s"] + (["millrace tok/s", "ratio", "of the limit"] if both else []),
                [speed_cells(row) for row in rows if "tokens" in row])
    print_table(["weights", "llama.cpp peak MiB (mapped file)"] + (["millrace peak MiB", "ratio"] if both else []),
                [memory_cells(row) for row in rows if "llama_cpp_bytes" in row])
    print("\nPeak memory is resident memory over both workloads. llama.cpp's counts the pages of the mapped GGUF file, given in "
          "brackets, and not Python's own.")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, help="the program; without it llama.cpp is measured alone")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="NAME.FORMAT.gguf, the source of the other formats")
    parser.add_argument("--variants", type=Path, default=CACHE / "peers" / "models", help="folder of the other formats' files")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS + CONVERTED)
    parser.add_argument("--isa", choices=list(CMAKE_ARGS), default="native", help="of both programs")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5, help="processes of each program, alternating")
    parser.add_argument("--repeat", type=int, default=3, help="measurements in each process")
    parser.add_argument("--python", type=Path, help="interpreter of an environment that already has llama-cpp-python and numpy")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.millrace and not args.millrace.exists():
        parser.error(f"no program at {args.millrace}")
    return args


def main():
    args = parse_args()
    files = model_files(args.model, args.formats, args.variants, args.millrace)
    python = args.python or peer_python(args.isa)
    load_before = os.getloadavg()
    if load_before[0] > 0.5:
        say(f"the load average is {load_before[0]:.1f}: other work disturbs the numbers")
    runs = measure(args, python, files)
    rows, machine = summary(args, runs), describe(args, runs, load_before)
    if args.json:
        print(json.dumps({"machine": machine, "rows": rows, "runs": runs}, indent=1))
    else:
        print_markdown(rows, machine)


if __name__ == "__main__":
    main()
