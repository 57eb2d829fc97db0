#!/bin/sh
# test_reproduce.sh BINARY: dev/reproduce.sh --smoke, also stopped by signals and continued; the report of a run; logs
# for TensorBoard and Weights & Biases.
#   PYTHON    default python3; needs matplotlib
#   QUICK=1   nothing

. "$(dirname "$0")/../lib.sh"
export PYTHON="$python"
script=$repo/dev/reproduce.sh

if ! command -v bash >/dev/null; then
    skip "no bash: dev/reproduce.sh"
    finish
fi

smoke() { "$script" --smoke --program "$binary" "$@"; }
report() { "$python" "$repo/dev/plot/report.py" "$@"; }
# reports RUN PATTERN…: the report of a run is written and contains each pattern.
reports() {
    of=$1
    shift
    succeeds report "$of"
    for text; do check "the report of $of contains '$text'" grep -q -e "$text" "$of/report.md"; done
}
# checkpoint FOLDER HEADER: a model of which only the header is read
checkpoint() { { little 8 ${#2}; printf %s "$2"; } >"$1/model.safetensors"; }
export_log() { "$python" "$repo/dev/plot/export_log.py" "$@"; }

slow_tests "dev/reproduce.sh, dev/plot/report.py and export_log.py" matplotlib

few="--layers 1 --steps 40 --save-every 5 --sample-every 0 --threads 1 --memory 1 --membership uniform --positions none"
rows() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }
# The part of a report that does not depend on time.
results() { sed -n '/^## Results/,/^## Run/p;/^## Samples/,$p' "$1/report.md"; }

mkdir whole
echo 'step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s' >whole/log.csv   # of a run without a checkpoint
succeeds smoke --out whole -- $few
[ $failed -eq 0 ] || finish
check "it prints the path of the report" [ "$(tail -n 1 stdout)" = "$dir/whole/report.md" ]
check "the report has a picture" [ "$(od -An -c -N4 whole/report.png | tr -d ' ')" = '211PNG' ]
reports whole "| stories_1_loss | [0-9.]* ± .* random windows: 40 windows" "| stories_3_loss | [0-9]" \
    "| last_word_1 | accuracy | .* | 12 examples |" "| recall | acc_norm | .* | 24 examples |" \
    "validation shards | [0-9][0-9.]* ± [0-9.]* |" "| cloze_2 | acc | .* | 8 examples |" \
    "| device | CPU" "| speed | [0-9,]* tokens/s" "| training | 40 steps, 40,960 tokens" " in 40 logged steps" \
    "train_gpt_tost [0-9]*\.[0-9]" "^Once upon a time" "| model | [0-9.]*[KM] parameters: 1 layer" \
    "vocabulary 2304, membership uniform, conv 4, memory 1, positions none"
check "no published data set is named" [ "$(grep -ciE 'lambada|wikitext|ptb|hellaswag|cbt' whole/report.md)" -eq 0 ]
check "no published losses beside another model's" [ "$(grep -c ', published' whole/report.md)" -eq 0 ]
check "the output of train is saved" grep -q '^step 40/40 ' whole/train.log
succeeds smoke --out whole -- $few
check "a second call trains and evaluates nothing again" [ "$(grep -c 'evaluated at step 40' stdout)" -eq 9 ]

# Stopped during training; then continued. The torture tests kill train at each of its calls.
"$script" --smoke --program "$binary" --out parts -- $few >stdout 2>stderr </dev/null &
process=$!
check "training begins" until_true rows parts/log.csv 8
kill -TERM $process 2>/dev/null
wait $process
status=$?
check "SIGTERM during training: status $status, expected 143" [ $status -eq 143 ]
check "it says how to continue: $(tail -n 1 stderr)" says "run the same command again" stderr
check "the training stopped with a checkpoint" [ -n "$(find parts -name 'step_[0-9]*' ! -name '*.*')" ]
check "the training did not finish" [ ! -e parts/step_00000040 ]
succeeds smoke --out parts -- $few
check "the log is that of the uninterrupted run" same_log whole/log.csv parts/log.csv
results whole >expected
results parts >got
check "results and samples are the same: $(diff expected got | head -n 5)" cmp -s expected got

# ---- report.py on any run --------------------------------------------------------------------------------------------

run --layers 1 --heads 2 --channels 8 --total-batch 1024 --steps 3 --sample-every 0 --save-every 0 \
    --data "$repo/data/starter/starter_train_*.bin" --out plain --quiet
succeeds report plain   # a run without checkpoints
check "no FLOPs utilization without the output of train" [ "$(grep -c FLOPs plain/report.md)" -eq 0 ]
printf 'step 1/3  loss 2  38.5%% MFU  ETA 1s\nstep 2/3  loss 2  39.5%% MFU\n' >plain/train.log
reports plain '^# `plain`$' '^| loss, nats per token | this run |$' 'sample --model plain --prompts FILE'
reports plain "| model FLOPs utilization | 39\.0 %" "run's validation shards | [0-9][0-9.]* after step 3.*by train" \
    "| device | $(cat plain/device.txt) |"
printf 'device     CPU, 7 threads\n' >plain.train.log
reports plain "| device | CPU, 7 threads; later $(cat plain/device.txt) |"
rm plain.train.log plain/device.txt
reports plain "| device | unknown, dtype unknown |"
mkdir -p plain/step_00000003 rose/step_00000002
checkpoint plain/step_00000003 '{"__metadata__": {"n_layer": "12", "n_head": "12", "n_embd": "768", "block_size": "1024",
    "vocab_size": "300", "step": "3"}, "x": {"shape": [2000, 1000]}}'
reports plain "| model | ToST-base, 2.0M parameters" "| ToST-base, published | GPT-2 base, published |" "4\.13" \
    "Not comparable with the published"
rm -r plain/step_00000003

# A validation loss that rises, in a run on 128 tokens
printf '%s\n' "$(head -n 1 whole/log.csv)" 0,0,,7.5,,,, 1,128,7.4,5.0,1,1,1,1 2,256,2.0,5.04,1,1,1,1 >rose/log.csv
checkpoint rose/step_00000002 '{"__metadata__": {"step": "2", "option.data-tokens": "128"}}'
succeeds report rose
check "a loss that rises by less than 1 %: no word" [ "$(grep -c 'loss rose' rose/report.md)" -eq 0 ]
sed -i.old s/5.04/5.06/ rose/log.csv
reports rose "| overfit | the validation loss rose after step 1: --steps 1 or --keep-best would"
mkdir rose/best
reports rose "| overfit | the validation loss rose after step 1: use rose/best |"
rm -r rose/best rose/step_00000002
reports rose "| worse | the validation loss rose after step 1: a lower --lr may help |"

# Names and texts that are Markdown or HTML are shown as code.
name='a `<img src=x>` [b](javascript:c)'
cp -R plain "$name"
printf 'device     CPU [d](javascript:e) `g` | h\n' >"$name/train.log"
printf '%s\n' '{"prompt": "one\n```\n", "text": "<script>1</script>\n"}' >"$name/samples.jsonl"
succeeds report "$name"
for line in '# `` a `<img src=x>` [b](javascript:c) ``' '````' '| device | CPU \[d](javascript:e) \`g\` \| h |'; do
    check "hostile text: a line '$line': $(head -n 1 "$name/report.md")" grep -qxF -e "$line" "$name/report.md"
done

# ---- export_log.py ---------------------------------------------------------------------------------------------------

mkdir with
# a wandb that writes what it gets to wandb.log
cat >with/wandb.py <<'END'
import json
Settings = dict
class errors:
    Error = RuntimeError
def write(record):
    with open("wandb.log", "a") as file:
        print(json.dumps(record, sort_keys=True), file=file)
class init:
    def __init__(self, **options):
        write(options)
    def log(self, row, step):
        write({"step": step} | row)
    def finish(self):
        write("finished")
END
PYTHONPATH="$dir/with" succeeds export_log whole --wandb tost --offline
check "all steps are exported to wandb" [ "$(wc -l <wandb.log)" -eq 43 ]
check "project, name and options" \
    grep -q '^{"config": {.*"save-every": "5".*"name": "whole", "project": "tost"' wandb.log
check "the last step, with its validation loss" [ "$(grep -c '"step": 40, .*"val/loss": ' wandb.log)" -eq 1 ]
mkdir growing
head -n 3 whole/log.csv >growing/log.csv
rm wandb.log
PYTHONPATH="$dir/with" "$python" "$repo/dev/plot/export_log.py" growing --wandb tost --follow >stdout 2>stderr &
follower=$!
until_true [ -s wandb.log ]
tail -n +4 whole/log.csv >>growing/log.csv
until_true says '"step": 40,' wandb.log
kill -TERM $follower
wait $follower
check "--follow exports later steps, each once, and ends at a signal" [ "$?.$(wc -l <wandb.log)" = 0.43 ]
if has tensorboard; then
    for again in 1 2; do succeeds export_log whole --tensorboard events; done
    check "one file of events" [ "$(ls events/whole | wc -l)" -eq 1 ]
    check "TensorBoard reads all steps, losses and options" "$python" -c "
import csv, math
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
log = EventAccumulator('events/whole', size_guidance={'scalars': 0})
log.Reload()
rows = list(csv.DictReader(open('whole/log.csv')))[1:]   # without step 0
got = log.Scalars('train/loss')
assert [e.step for e in got] == list(range(1, 41)), got
assert all(math.isclose(e.value, float(r['train_loss']), rel_tol=1e-6) for e, r in zip(got, rows))
assert [e.step for e in log.Scalars('val/loss')] == [0, 40] and 'options' in log.Tags()['tensors']"
else
    skip "$python has no tensorboard: its event files"
fi

finish
