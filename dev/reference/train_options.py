"""Options of train.py and variants.py. Needs only Python."""

from pathlib import Path

REQUIRED = object()
# name: type, default without --like, help
OPTIONS = {
    "data": (str, REQUIRED, "training shards, a quoted glob"),
    "val-data": (str, None, "validation shards"),
    "order": (str, "shuffled", "sequential or shuffled"),
    "steps": (int, REQUIRED, "optimizer steps"),
    "batch": (int, 1, "sequences per micro-batch"),
    "seq": (int, None, "sequence length in tokens (default: the block size)"),
    "total-batch": (int, None, "tokens per step (default: batch × seq)"),
    "lr": (float, REQUIRED, "peak learning rate"),
    "warmup": (int, 0, "warm-up steps"),
    "min-lr-frac": (float, 0.1, "final learning rate as a fraction of the peak"),
    "weight-decay": (float, 0.1, "for embeddings and Linear weights"),
    "optimizer": (str, "adamw", "adamw, or muon for the weights of Linear in the layers"),
    "beta1": (float, 0.9, "AdamW"),
    "beta2": (float, 0.95, "AdamW"),
    "eps": (float, 1e-8, "AdamW"),
    "grad-clip": (float, 1.0, "maximum gradient norm; 0: no clipping"),
    "seed": (int, 1337, "random seed of the data order, and of GPT-2's initial weights"),
    "val-every": (int, 0, "steps between validations; 0: never"),
    "val-batches": (int, 20, "micro-batches per validation, spread evenly over --val-data; 0: all"),
}


def add_options(parser):
    parser.add_argument("--init", required=True, metavar="MODEL", help="initial weights, as for --model")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for log.csv and the weights")
    parser.add_argument("--like", metavar="RUN", help="trainer run that provides the missing options")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing log.csv in --out")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, …")
    parser.add_argument("--dtype", choices=("fp32", "fp64", "bf16"), default="fp32",
                        help="fp32 (default), fp64, or bf16 with autocast")
    parser.add_argument("--attention", choices=("tssa", "softmax"), default="tssa",
                        help="tssa (default), or softmax: GPT-2 of the same size")
    parser.add_argument("--compile", action="store_true", help="use torch.compile: faster, needs a C++ compiler")
    parser.add_argument("--by-position", type=Path, metavar="JSON",
                        help="write the final loss on the whole windows of --val-data by position, in the format of "
                             "eval --by-position --json, and on rare pairs of tokens")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 (default): chosen by torch")
    parser.add_argument("--quiet", action="store_true", help="print nothing on stdout")
    for name, (kind, default, text) in OPTIONS.items():
        shown = f" (default {default})" if default not in (REQUIRED, None) else ""
        parser.add_argument(f"--{name}", type=kind, help=text + shown)
    return parser
