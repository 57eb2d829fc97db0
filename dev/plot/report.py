"""Writes the report of a run: report.md and report.png in its folder.

    report.py RUN

RUN is the folder of any run of the trainer. The report has the loss curve, the evaluation results, for a preset
beside the published ones, version, device, time, speed, options and samples. It reads

    RUN/log.csv                       loss, time and speed
    RUN/step_*/model.safetensors      version and options, from the metadata of the newest checkpoint
    RUN/eval/NAME.json                results of `eval --json`; validation (on OpenWebText), lambada_loss,
                                      wikitext2_loss and ptb_loss have published values; others appear by name
    RUN/device.txt                    the device of each start of `train`
    RUN/train.log or RUN.train.log    the output of `train`, for the model FLOPs utilization and, without device.txt,
                                      the device: train_gpt_tost --out RUN … | tee RUN.train.log
    RUN/samples.jsonl                 the output of `sample --prompts`

A cell without a result says which command or file it needs. dev/reproduce.sh makes all files; train.log only if its
output is not a terminal.
Needs Python 3.11 or later and matplotlib.
"""

import json
import math
import re
import statistics
import sys
from datetime import timedelta
from pathlib import Path

from cli import about, command, need, option_parser, run, write_file
import figure
import loss
from runs import Run, newest_checkpoint, numpy as np

# Names in RUN/eval: (title, key in loss.PUBLISHED)
LOSSES = {"validation": ("OpenWebText", "openwebtext"), "lambada_loss": ("LAMBADA", "lambada"),
          "wikitext2_loss": ("WikiText-2", "wikitext2"), "ptb_loss": ("PTB", "ptb")}
# Published models: layers, heads, channels, block size
SIZES = {"ToST-base": (12, 12, 768, 1024), "ToST-medium": (24, 16, 1024, 1024), "ToST-large": (36, 20, 1280, 1024)}
# Options of the model; as published, they are absent
VARIANTS = ("membership", "conv", "memory", "positions", "bigrams")
GPT2_VOCABULARY = range(50257, 50305)
# Keys of eval's JSON that are not results
SETTINGS = {"step", "seq", "seed", "stride", "examples", "tokens"}
NOT_MEASURED = "not measured (train with --val-data)"
PLAIN = str.maketrans({"<": "&lt;", "\n": " ", "\r": " ", **{c: f"\\{c}" for c in "\\|[`"}})   # no links, no HTML


# ----------------------------------------------------------------------------------------------------------
# Reading

def read_samples(path):
    """The objects of a JSONL file, or [] if it does not exist."""
    if not path.exists():
        return []
    with about(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]


def read_output(folder):
    """The devices, and the percentages of FLOPs utilization in the output of `train`."""
    beside = Path(f"{folder.resolve()}.train.log")   # the folder does not exist before the run starts
    output, devices = ("".join(path.read_text(errors="replace") for path in paths if path.exists())
                       for paths in ((folder / "train.log", beside), (folder / "device.txt",)))
    return (re.findall(r"^device +(.*)$", output, re.M) + devices.splitlines(),
            list(map(float, re.findall(r"  ([0-9]+\.[0-9])% MFU", output))))


def read_results(folder):
    """{name: result} of folder/eval/*.json."""
    results = {}
    for path in sorted((folder / "eval").glob("*.json")):
        with about(path):
            result = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if not isinstance(result, dict) or result.get("content") != "eval" or "partial" in result:  # earlier versions
            raise ValueError(f"{path}: not a result of eval --json, or a partial one; evaluate again")
        results[path.stem] = result
    return results


# ----------------------------------------------------------------------------------------------------------
# Text

def code(text, fence="```", end="\n"):
    """Text as a block of Markdown code."""
    while fence in text:
        fence += "`"
    return f"{fence}{end}{text}{end}{fence}"


def table(header, rows):
    rows = [[str(cell).translate(PLAIN) for cell in row] for row in rows]
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
                      *("| " + " | ".join(row) + " |" for row in rows)])


def with_interval(value, other):
    """A value with its 95 % interval: a half-width, two limits or None."""
    if not isinstance(value, (int, float)):
        return "–"
    if isinstance(other, list):
        return f"{value:.4f} ({other[0]:.4f}–{other[1]:.4f})"
    return f"{value:.4f} ± {other:.4f}" if other is not None and math.isfinite(other) else f"{value:.4f}"


def protocol(result):
    if "file" in result:   # of a task
        return f"{result.get('examples', '?')} examples"
    count = len(result.get("window", []))
    return f"{result.get('protocol', '?')}: {count:,} windows of {result.get('seq', '?')} tokens"


def is_openwebtext(metadata):
    return re.search(r"openwebtext|\bowt", metadata.get("option.data", ""), re.IGNORECASE) is not None


def published_model(metadata):
    """The published model of the run's sizes, or None."""
    if any(key in metadata for key in VARIANTS):
        return None
    sizes = tuple(int(metadata.get(key, 0)) for key in ("n_layer", "n_head", "n_embd", "block_size"))
    return next((name for name, published in SIZES.items() if published == sizes), None)


def loss_table(results, metadata, log, folder):
    """The loss on the validation shards and on the published and other data sets that were evaluated; for a published
    model on all published ones, beside the published losses."""
    model = published_model(metadata)
    names = [model, "GPT-2 base"] if model else []
    rows = []
    for name in [*LOSSES, *(name for name in results if name not in LOSSES and "file" not in results[name])]:
        result, (title, key) = results.get(name), LOSSES.get(name, (name, None))
        published = [f"{loss.PUBLISHED[key][n]:.2f}" if key else "–" for n in names]
        if name == "validation" and not is_openwebtext(metadata):
            title, published = "the run's validation shards", ["–"] * len(names)
        if result:
            ours = with_interval(result.get("loss"), result.get("loss_95"))
        elif name == "validation" and validation(log) != NOT_MEASURED:
            ours = f"{validation(log)}, by train (log.csv)"
        elif name == "validation" or model:
            ours = f"not evaluated (eval --model {folder} --data SHARDS --json {folder}/eval/{name}.json)"
        else:
            continue
        rows.append([title, ours, *published, protocol(result) if result else ""])
    if not results:
        rows = [row[:-1] for row in rows]   # no protocol
    return table(["loss, nats per token", "this run", *(f"{n}, published" for n in names),
                  *(["protocol"] if results else [])], rows)


def task_rows(results):
    for name, result in results.items():
        if "file" not in result:
            continue
        for key, value in result.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and key not in SETTINGS and not key.endswith("_95"):
                yield [name, key, with_interval(value, result.get(f"{key}_95")), protocol(result)]


def finite(values):
    return values[np.isfinite(values)]


def validation(log):
    measured = np.flatnonzero(np.isfinite(log.val_loss))
    if not len(measured):
        return NOT_MEASURED
    last, best = measured[-1], measured[log.val_loss[measured].argmin()]
    return f"{log.val_loss[last]:.4f} after step {log.step[last]:.0f}; best {log.val_loss[best]:.4f} after step " \
           f"{log.step[best]:.0f}"


def rise(folder, log, metadata):
    """A row if the last validation loss is above the best by more than 1 %, as at the end of `train`."""
    step, losses = log.step[np.isfinite(log.val_loss)], finite(log.val_loss)
    if not len(losses) or losses[-1] <= 1.01 * losses.min():
        return []
    best, repeats = int(step[losses.argmin()]), log.tokens[-1] > int(metadata.get("option.data-tokens", sys.maxsize))
    instead = (f"use {folder}/best" if (folder / "best").is_dir() else "a lower --lr may help" if not (repeats and best)
               else f"--steps {best} or --keep-best would have given a better model")
    return [["overfit" if repeats else "worse", f"the validation loss rose after step {best}: {instead}"]]


def fact_rows(folder, log, metadata, devices, mfu):
    seconds = finite(log.ms).sum() / 1000
    final, speeds = finite(log.train_loss[-max(1, len(log.step) // 40):]), finite(log.tokens_per_s)
    sizes = [metadata.get(key, "?") for key in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")]
    rows = [["program", metadata.get("program", "unknown")],
            ["device", "; later ".join(dict.fromkeys(devices)) or
             f"unknown, {metadata.get('option.dtype', 'dtype unknown')}"]]
    if metadata:
        name = published_model(metadata)
        rows.append(["model", (f"{name}, " if name else "") + f"{metadata['parameters'] / 1e6:.1f}M parameters: "
                     "{} layers, {} heads, {} channels, block size {}, vocabulary {}".format(*sizes)
                     + "".join(f", {key} {metadata[key]}" for key in VARIANTS if key in metadata)])
        rows.append(["data", metadata.get("option.data", "?")])
    logged = f"{np.count_nonzero(log.tokens):,} logged steps, without validation, samples and checkpoints"
    rows += [["training", f"{int(log.step[-1]):,} steps, {int(log.tokens[-1]):,} tokens"],
             ["training loss", f"{final.sum() / (len(final) or math.nan):.4f}, mean of the last {len(final):,} steps"],
             ["validation loss", validation(log)], *rise(folder, log, metadata),
             ["time", f"{timedelta(seconds=round(seconds))} in {logged}"]]
    if len(speeds) and seconds:
        rows.append(["speed", f"{np.median(speeds):,.0f} tokens/s (median of the steps)"])
    if mfu:
        rows.append(["model FLOPs utilization", f"{statistics.median(mfu):.1f} % (median of the printed steps)"])
    return rows


def report(folder, log):
    metadata, results = newest_checkpoint(folder), read_results(folder)
    samples = read_samples(folder / "samples.jsonl")
    name = " ".join(folder.resolve().name.split())
    parts = [f"# {code(name, '`', ' ' if '`' in name else '')}",
             "![Training and validation loss](report.png)", "## Results",
             loss_table(results, metadata, log, folder)]
    if published_model(metadata) and int(metadata.get("vocab_size", 0)) not in GPT2_VOCABULARY:
        parts.append(f"Not comparable with the published losses: the vocabulary has {metadata.get('vocab_size')} "
                     "tokens and is not GPT-2's.")
    tasks = list(task_rows(results))
    if tasks:
        parts.append(table(["task", "metric", "this run", "examples"], tasks))
    parts += ["Intervals are 95 % intervals over windows or examples.", "## Run",
              table(["", ""], fact_rows(folder, log, metadata, *read_output(folder)))]
    options = "\n".join(f"{key.removeprefix('option.')} = {value}" for key, value in metadata.items()
                        if key.startswith("option."))
    if options:
        parts.append(f"<details><summary>options</summary>\n\n{code(options)}\n\n</details>")
    if not samples:
        wanted = f"train_gpt_tost sample --model {folder} --prompts FILE > {folder}/samples.jsonl"
        parts.append(f"No samples yet:\n\n{code(wanted)}")
    else:
        parts += ["## Samples", *(code(f"{sample.get('prompt', '')}{sample.get('text', '')}") for sample in samples)]
    return "\n\n".join(parts) + "\n"


def draw(folder, log):
    """The loss curve. The steep beginning of a long run is cut off."""
    first = len(log.step) // 50 if len(log.step) >= 500 else 0
    shown = finite(np.concatenate((log.train_loss[first:], log.val_loss[first:])))
    arguments = [str(folder), "--title", folder.resolve().name, "--out", str(folder / "report.png")]
    metadata = newest_checkpoint(folder)
    if published_model(metadata) and int(metadata.get("vocab_size", 0)) in GPT2_VOCABULARY and is_openwebtext(metadata):
        arguments += ["--published", "openwebtext"]
        shown = np.append(shown, list(loss.PUBLISHED["openwebtext"].values()))
    if len(shown):
        margin = 0.03 * (shown.max() - shown.min()) + 1e-3
        arguments += ["--min", str(shown.min() - margin), "--max", str(shown.max() + margin)]
    args = loss.parse(arguments)
    figure.write(loss.draw([log], args), args)


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    folder = parser.parse_args(arguments).run
    need("matplotlib", "numpy")
    if not folder.is_dir():
        raise ValueError(f"{folder}: not a folder; give the folder of a run")
    log, out = Run(folder), folder / "report.md"
    text = report(folder, log)
    draw(folder, log)
    write_file(out, lambda part: part.write_text(text, encoding="utf-8"))
    print(out)


if __name__ == "__main__":
    sys.exit(run(main))
