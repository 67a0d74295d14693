#!/usr/bin/env bash
# The first minutes on a GPU: does gpupipe work there, are its pixels right, how fast is it?
#
#     benchmarks/first_gpu.sh [--device cpu] [--quick] [--photos DIR] [--within SECONDS] OUT [PART...]
#
# Each part is a process of its own with a time limit. One that fails does not stop the next.
# OUT gets PART.json of each part with the end of what it printed, summary.json and summary.txt. A
# later call with the same OUT and other parts adds to them. The status is 0 where every check of
# every part holds.
#
#     part         seconds at most   what it answers
#     call 1, the most telling parts
#     versions      20   packages, driver, GPU, nvidia-smi
#     streams      190   do batches stay what they are while kernels are queued
#     rates        110   decoding alone: images a second and who decodes, by kind and size
#     training      80   ResNet-50 in bfloat16: how much of a step is waiting for data
#     law_1        110   tests/gpu: is a sample the same in every batch, order and run
#     call 2
#     decode       190   are decoded pixels right: hardware, CUDA and CPU over 3,000 photographs
#     engines      170   engine: cpu and dali to the GPU, on 1, 2, 4, ... cores
#     doctor        60   gpupipe doctor
#     probe        110   what the decoders can do with parts of images
#     call 3
#     throughput   290   benchmarks/gpu.py
#     broken_files 240   tests/gpu: cut and damaged files, and a GPU that fails
#     call 4
#     tests        530   the other tests of tests/gpu, those of all dtypes last
#
# On an H200 a graph that decodes takes 1.7 s to build, whatever its options, and processes that
# build some at once wait for one another: the tests build 400.
#
# Where a call may take 10 minutes and give back few files, make four: each takes 9 minutes at
# most, and leaves 8 small files in OUT at most.
#
#     benchmarks/first_gpu.sh --within 540 OUT 1
#     benchmarks/first_gpu.sh --within 540 OUT 2
#     benchmarks/first_gpu.sh --within 540 OUT 3
#     benchmarks/first_gpu.sh --within 540 OUT 4
#
# --within SECONDS (default 2140) bounds all parts of a call together.
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
# DIR/CLASS/*.jpg; without it (and without $GPUPIPE_PHOTOS) they are cut out of those that
# scikit-learn and scikit-image ship, and where these are missing, images are drawn.
set -u

calls=([1]="versions streams rates training law_1"
       [2]="decode engines doctor probe"
       [3]="throughput broken_files"
       [4]="tests")
declare -A limit=([versions]=20 [streams]=190 [rates]=110 [training]=80 [law_1]=110
                  [decode]=190 [engines]=170 [doctor]=60 [probe]=110
                  [throughput]=290 [broken_files]=240 [tests]=530)
read -ra all <<<"${calls[*]}"

usage() { sed -n '/^# /s/^# //p; /^#$/s/^#//p; /^set -u/q' "$0" >&2; exit 2; }

within=2140 words=() patience=1
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
parts=()
for word in "${@:-${all[@]}}"; do
    [[ $word =~ ^[1-4]$ ]] && word=${calls[word]}
    read -ra more <<<"$word"
    parts+=("${more[@]}")
done
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
