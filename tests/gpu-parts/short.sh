# shellcheck shell=bash disable=SC2034,SC2086,SC2154,SC2329
# The parts of the two short calls of tests/gpu, which sources this file, and what all parts share.
# Each runs in OUT_DIR/PART, prints to its log, and writes a one-line result to OUT_DIR/PART/found and tables to OUT_DIR/PART/table.txt.
# A part runs in one process group, which ends with it; so `timeout` inside a part has --foreground.

found() { echo "$*" | tee found; }
skip() { found "$*"; exit $SKIPPED; }
fail() { found "$*"; exit 1; }
tell() { echo "+ $*" >&2; "$@"; }
pipesim() { tell "$bin/pipesim" "$@"; }
# last_error FILE: the line that says why a program ended
last_error() { { grep -v '^+' "$1" | grep -E '^error|panicked|expected|Error' || tail -n 1 "$1"; } | tail -n 1 | cut -c -300; }
joined() { local IFS=,; echo "$*"; }
listed() { local all; all=$(printf '; %s' "$@"); echo "${all:2}"; }

# cargo_tests LOG PROGRAM ARGUMENTS...: 0 if all tests passed; adds their number to `passed`
passed=0
cargo_tests() {
    local log=$1; shift
    local code=0 number
    tell env PIPESIM_TEST_GPU=1 PIPESIM_ROOT="$root" "$@" >"$log" 2>&1 || code=$?
    grep -E '^test |test result|largest error|skipped on a GPU' "$log" || true
    number=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | tail -n 1)
    passed=$((passed + ${number:-0}))
    [ "$code" = 0 ] || { grep -E 'panicked|^error' -A 2 "$log" | head -n 40; tail -n 40 "$log"; }
    [ "$code" != 0 ] || [ "${number:-0}" -gt 0 ] || code=1
    return "$code"
}

# tests NAME TEST..: these tests of the program, into NAME.txt, one at a time
tests() {
    local name=$1; shift
    cargo_tests "$name.txt" "$bin/training" "$@" --nocapture --test-threads=1
}

# why FILE...: the first words of the first test that failed
why() {
    local words
    words=$(grep -h -A 1 panicked "$@" | grep -v -e panicked -e '^--$' -e '^the child failed' | head -n 1 | cut -c -200) || true
    echo "${words:-no test passed or says why, see $*}"
}

# Sizes of GPT-2 124M in the tests that measure; tiny with PIPESIM_GPU_QUICK
sizes=(PIPESIM_TEST_LARGE=1)
[ "$quick" = 1 ] && sizes=()
ceilings=$out/ceilings/ceilings.txt

# Ops of about a millisecond: 100 M parameters, micro-batches of 1536 tokens. A dozen such models share 80 GB.
large=(--blocks 8 --heads 8 --channels 1024 --vocabulary 257 --max-sequence 1536 --seq 1536 --precision bfloat16)
[ "$quick" = 1 ] &&
    large=(--blocks 4 --heads 1 --channels 16 --vocabulary 257 --max-sequence 16 --seq 16 --precision bfloat16 --warmup 0)

# The golden model: 4 blocks, so at most 4 stages; 8 sequences per step in 8 micro-batches.
golden=(--micro 8 --seq 32 --lr 1e-3 --warmup 1 --format json
    --checkpoint "$root/tests/golden/gpt2/model.bin" --data "$root/tests/golden/gpt2/tokens.bin")
golden_losses=(losses_of "$root/tests/golden/gpt2/expected.json" C_stream_b0.9_0.999_wd0)

# losses_of EXPECTED KEY TOLERANCE NAMES OUTPUT ARGUMENTS...: runs pipesim and compares its losses with the expected ones
losses_of() {
    local expected=$1 key=$2 tolerance=$3 names=$4 output=$5; shift 5
    echo "+ pipesim run $* --schedule $names"
    # only its losses are of use, not its report
    "$bin/pipesim" run "$@" --schedule "$names" --quiet --output "$out/.unused/" >"$output.json" 2>"$output.err" || {
        local code=$?
        cat "$output.err"
        return $code
    }
    figures losses "$output.json" "$expected" "$key" "$tolerance" "$names" | sed "s/^/$output: /" | tee -a lines
}

ten=cuda::ten_steps_of_adamw_give_pytorchs_losses_in_float32
held=cuda::a_step_is_enqueued_while_its_stream_is_held_up
epilogues=cuda::every_epilogue_is_asked_of_the_library_and_what_it_refuses_is_said

part_ceilings() {
    cargo_tests tests.txt env ${sizes[@]+"${sizes[@]}"} "$bin/training" cuda::ceilings:: --nocapture --test-threads=1 || fail "$(why tests.txt)"
    grep '^ceiling ' tests.txt >ceilings.txt || fail "no ceiling was measured"
    found "$(sed 's/^ceiling //' ceilings.txt | paste -sd, | sed 's/,/, /g')"
}

part_ten-losses() {
    tests losses $ten || fail "$(why losses.txt)"
    found "$passed test passed: settings A, B and C on the whole GPU and on 2 slices, within 1e-4 of PyTorch's losses"
}

# headline_run STEPS NAME ARGUMENTS...: the schedules on two slices, predicted and measured; the report is in NAME/
headline_run() {
    local steps=$1 name=$2 micro=8; shift 2
    [ "$quick" = 1 ] && steps=1 micro=4
    if pipesim run --device cuda --gpu-slices 2 --stages 2 --micro $micro --schedule naive,gpipe,1f1b,zb-v "${large[@]}" --steps $steps \
        --timeout 30 --format json --quiet --output "$PWD/$name/" "$@" >"$name.json" 2>"$name.err"; then
        runs+=("$name")
        outcomes+=("$name: $(figures headline "${runs[@]}" 2>&1 | tail -n 1)") || code=1
    else
        outcomes+=("$name failed ($?): $(last_error "$name.err")")
        cat "$name.err"
        code=1
    fi
    found "$(listed "${outcomes[@]}")"
}

part_headline-small() {
    local code=0 outcomes=() runs=()
    headline_run 2 copy --link copy
    return $code
}

# Slices share memory bandwidth and power, so an op of naive, which runs alone, may be faster than one of 1F1B: costs of both predict.
part_headline() {
    local code=0 outcomes=() runs=()
    headline_run 12 copy --link copy --calibrate 1f1b
    headline_run 12 copy-from-naive --link copy --calibrate naive
    headline_run 12 local --link local --calibrate 1f1b
    return $code
}

part_throughput() {
    local code=0 options=()
    [ "$quick" = 1 ] && options=(--sequences 1 --micro 2 --seq 64 --steps 2)
    # ends before the part does: what was measured by then is told
    tell timeout --foreground -k 2 113 python3 "$root/tests/benches/pytorch_gpu.py" --pipesim "$bin/pipesim" --seconds 85 --output throughput.json \
        ${options[@]+"${options[@]}"} 2>errors || code=$?
    cat errors
    [ $code = 5 ] && skip "$(tail -n 1 errors)"
    [ -e throughput.json ] || fail "exit code $code: $(last_error errors)"
    figures throughput throughput.json "$ceilings" >words 2>&1 || code=1
    found "$(tail -n 1 words)"
    return $code
}

part_times() {
    cargo_tests times.txt env ${sizes[@]+"${sizes[@]}"} "$bin/training" cuda::times:: --nocapture --test-threads=1 || fail "$(why times.txt)"
    grep -hE '^(kernel|group) ' times.txt >lines.txt || fail "no kernel was timed"
    figures times lines.txt "$ceilings" >words 2>&1 || fail "$(tail -n 1 words)"
    found "$(cat words)"
}

# In a sandbox without CUDA's virtual memory management NVSHMEM may work without it, too.
part_ranks() {
    local name link code outcomes=() working=() failed=0 is_broken=0 steps=3 names=1f1b,zb-v,gpipe wait=3 words
    [ "$quick" = 1 ] && names=1f1b steps=2 wait=2
    local rank=(--device cuda --gpu-slices 2 --stages 2 -n 2 --timeout $((12 * ${PIPESIM_GPU_PATIENCE:-1})))
    rm -f lines
    for name in copy nvshmem nvshmem-without-vmm; do
        link=${name%%-*} code=0
        if [ $name = nvshmem-without-vmm ]; then
            [ $is_broken = 1 ] || continue
            export NVSHMEM_DISABLE_CUDA_VMM=1
        fi
        "${golden_losses[@]}" 1e-4 $names "ranks-$name" "${golden[@]}" "${rank[@]}" --link $link --steps $steps || code=$?
        case $code in
            0) outcomes+=("$name: losses are PyTorch's"); working+=("$link") ;;
            5) outcomes+=("$name refused: $(last_error "ranks-$name.err")") ;;
            *) outcomes+=("$name failed ($code): $(last_error "ranks-$name.err")"); failed=1 ;;
        esac
        [ $name,$code = nvshmem,0 ] || [ $name = copy ] || is_broken=1
        found "$(listed "${outcomes[@]}")" # what is known if the next one hangs
    done
    for link in ${working[@]+"${working[@]}"}; do
        words=$(figures killed $wait "$bin/pipesim" run "${golden[@]}" "${rank[@]}" --link $link --schedule 1f1b \
            --steps 100000 --output "$PWD/.unused/") || failed=1
        outcomes+=("$link with rank 1 killed: $words")
        found "$(listed "${outcomes[@]}")"
    done
    [ $failed = 0 ] || return 1
    [ ${#working[@]} -gt 0 ] || exit $SKIPPED
}

part_products() {
    local only=(kernels::attention_in_float32 kernels::attention_in_bfloat16_on_tensor_cores) code=0
    [ "$quick" = 1 ] && only=(kernels::bias)
    tests kernels "${only[@]}" || code=$?
    tests epilogues $epilogues || code=$?
    local refused
    # the first is on the line that names the test
    refused=$(grep -o 'epilogue .*: refused' epilogues.txt | sed 's/: refused//; s/^epilogue //' | paste -sd';' | sed 's/;/; /g') || true
    found "$passed tests passed; $(grep -c 'epilogue .*: done' epilogues.txt || true) epilogues done, refused: ${refused:-none}"
    [ "$code" = 0 ] || fail "$(why kernels.txt epilogues.txt); $(cat found)"
}

# run alone: if something waits, it waits until the part's limit
part_held-up() {
    tests held --exact $held || fail "$(why held.txt)"
    found "$passed test passed"
}

part_doctor() {
    timeout --foreground 10 nvidia-smi -q >nvidia-smi.txt 2>&1 || true
    timeout --foreground 10 nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader >gpus.txt 2>/dev/null || true
    local modes mps=no
    modes=$(timeout --foreground 10 nvidia-smi --query-gpu=mig.mode.current,compute_mode --format=csv,noheader 2>/dev/null | paste -sd';') || true
    [ -e "${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control" ] && mps=yes
    "$bin/pipesim" doctor --time-limit 60 --format json >doctor.json
    figures doctor doctor.json >words 2>&1 || fail "$(tail -n 1 words)"
    found "$(cat words); MIG and compute mode: ${modes:-unknown}; MPS: $mps"
}

# Bytes of DRAM and time of every kernel of one micro-batch. Without the two options for clocks and caches ncu would lock the
# clocks of the card, and time kernels with empty caches.
part_ncu() {
    local program launches=(--launch-skip 420 --launch-count 400)
    [ "$quick" = 1 ] && launches=(--launch-count 20)
    program=$(command -v ncu || find -L /usr/local/cuda*/bin /opt/nvidia/nsight-compute -maxdepth 2 -name ncu -type f 2>/dev/null | head -n 1) || true
    [ -n "$program" ] || skip "no ncu on this machine"
    tell env PIPESIM_TEST_GPU=1 ${sizes[@]+"${sizes[@]}"} "$program" --clock-control none --cache-control none "${launches[@]}" --csv --page raw \
        --metrics gpu__time_duration.sum,dram__bytes.sum --log-file dram.csv --target-processes all \
        "$bin/training" cuda::times:: --nocapture --test-threads=1 >out.txt 2>&1 || fail "ncu failed: $(last_error out.txt)"
    figures dram dram.csv "$ceilings" >words 2>&1 || fail "$(tail -n 1 words)"
    found "$(cat words)"
}
