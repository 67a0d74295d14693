#!/usr/bin/env bash
# The first 20 minutes on a GPU: does gpupipe work there, are its pixels right, how fast is it?
#
#     benchmarks/first_gpu.sh [--device cpu] [--quick] [--photos DIR] [--within SECONDS] OUT [PART...]
#
# Each part is a process of its own with a time limit. One that fails does not stop the next.
# OUT gets PART.json and PART.log of each part, summary.json and summary.txt. A later call with
# the same OUT and other parts adds to them. The status is 0 where every check of every part holds.
#
#     part         seconds at most   what it answers
#     versions      30   packages, driver, GPU, nvidia-smi
#     doctor        90   gpupipe doctor
#     probe        150   what the decoders can do
#     tests        240   pytest tests/gpu
#     decode       120   are decoded pixels right: hardware, CUDA and CPU over 3,000 photographs
#     streams      150   do batches stay what they are while kernels are queued
#     training     100   ResNet-50 in bfloat16: how much of a step is waiting for data
#     throughput   410   benchmarks/gpu.py
#
# --within SECONDS (default 1200) bounds all parts together. Where a call may take 10 minutes only:
#
#     benchmarks/first_gpu.sh --within 570 OUT versions doctor probe tests decode streams training
#     benchmarks/first_gpu.sh --within 570 OUT throughput
#
# --device cpu --quick runs every part without a GPU, on a few images: it proves the script. The
# limits save a GPU's time, so that on a CPU each part may take ten times as long.
#
# It needs python3 (or $PYTHON) with pytest and what gpupipe requires; gpupipe itself is used from
# this checkout. On a machine that has torch, torchvision and their usual company, but no DALI
# and no package registry, take these wheels along (for CUDA 13; -cu12 and cuda120 for CUDA 12):
# nvidia-dali-cuda130 nvidia-nvimgcodec-cu13 nvidia-nvjpeg nvidia-nvjpeg2k-cu13 nvidia-nvtiff-cu13
# nvidia-libnvcomp-cu13 astunparse gast six nvtx makefun libcst optree; omegaconf pydantic
# pydantic-core annotated-types typing-inspection typing-extensions; and for the remote engine,
# which is else left out with a stated reason, pyzmq msgspec. --photos names real photographs,
# DIR/CLASS/*.jpg; without any (and without $GPUPIPE_PHOTOS) images are drawn.
set -u

all=(versions doctor probe tests decode streams training throughput)
declare -A limit=([versions]=30 [doctor]=90 [probe]=150 [tests]=240 [decode]=120 [streams]=150
                  [training]=100 [throughput]=410)

usage() { sed -n '/^# /s/^# //p; /^#$/s/^#//p; /^set -u/q' "$0" >&2; exit 2; }

within=1200 words=() patience=1
while [[ ${1-} == --* ]]; do
    case $1 in
        --quick) words+=("$1"); shift ;;
        --device | --photos)
            [[ $1 != --device || ${2-} != cpu ]] || patience=10
            words+=("$1" "${2-}"); shift 2 || usage ;;
        --within) within=${2-}; shift 2 || usage ;;
        *) usage ;;
    esac
done
[[ $# -gt 0 && $within =~ ^[0-9]+$ ]] || usage
out=$1; shift
parts=("${@:-${all[@]}}")
for part in "${parts[@]}"; do
    [[ -n ${limit[$part]-} ]] || { echo "no part '$part'; there are: ${all[*]}" >&2; exit 2; }
done

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
mkdir -p "$out" || exit 2
export PYTHONPATH="$here/..:$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

SECONDS=0
for part in "${parts[@]}"; do
    left=$((within - SECONDS - 5))
    allowed=$((limit[$part] * patience))
    seconds=$((left < allowed ? left : allowed))
    script=$here/first_gpu/$part.py
    rm -f "$out/$part.json"
    if ((seconds < 10)); then
        "$python" "$here/first_gpu/summary.py" ended "$out" "$part" none 0 1
        continue
    fi
    echo "$part, within $seconds s"
    began=$SECONDS
    PART_SECONDS=$seconds timeout -k 10 "$seconds" "$python" "$script" --out "$out" "${words[@]}" \
        >"$out/$part.log" 2>&1
    "$python" "$here/first_gpu/summary.py" ended "$out" "$part" $? $((SECONDS - began)) \
        "$seconds"
done
exec "$python" "$here/first_gpu/summary.py" print "$out"
