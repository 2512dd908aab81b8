#!/bin/sh
# Usage: sh tools/train/release/apply.sh CHECKPOINT DATA      (run from the root of the repository; about 5 minutes on one core)
# Puts an exported checkpoint (with drafter) into packages/tiny, records its baselines and removes what was of the old one.
set -eu
CHECKPOINT=$1 DATA=$2
HERE=tools/train/release
PY=${PYTHON:-python}
export OMP_NUM_THREADS=1
TINY=packages/tiny/src/thalweg/tiny/checkpoint

rm -rf "$TINY"; mkdir "$TINY"
cp "$CHECKPOINT"/*.safetensors "$CHECKPOINT"/model.safetensors.index.json "$CHECKPOINT"/config.json "$CHECKPOINT"/tokenizer.json "$TINY"/
cp "$DATA/NOTICE" "$TINY/NOTICE"; cp "$DATA/NOTICE" packages/tiny/NOTICE

cp "$HERE"/integration_tests/*.py integration_tests/
cp "$HERE"/packages/tiny/tests/test_location.py packages/tiny/tests/
cp "$HERE"/packages/tiny/README.md packages/tiny/README.md
cp -r "$HERE"/docs/. docs/
rm -f integration_tests/test_trial_model.py integration_tests/soak/test_trial_model_losses.py
rm -f integration_tests/golden/eval_nll.json integration_tests/golden/eval_windows.npy integration_tests/golden/greedy.json

sed -i 's/__version__ = "0.0.1"/__version__ = "0.1.0"/' packages/tiny/src/thalweg/tiny/__about__.py
sed -i 's/thalweg-tiny~=0.0.1/thalweg-tiny~=0.1.0/' packages/meta/pyproject.toml
grep -q '^## 0.1.0' packages/tiny/CHANGELOG.md || sed -i 's/^## 0.0.1/## 0.1.0\n\n- Another checkpoint, trained by `tools\/train` on text that is listed in NOTICE: with a drafter of three layers and confidences, and a\n  context of 8,192 positions.\n\n## 0.0.1/' packages/tiny/CHANGELOG.md

$PY -m tools.train.evaluate.baselines --checkpoint "$TINY" --data "$DATA" --out integration_tests/golden
$PY examples/quickstart.py > quickstart.txt
echo "now: README.md beside this script, then pytest integration_tests/test_small_model.py"
