# shellcheck shell=bash disable=SC2086,SC2154,SC2206,SC2329
# The parts of tests/gpu that are not part of a short call; see short.sh for what they share.

# GPT-2 124M; tiny with PIPESIM_GPU_QUICK
gpt2=(--model gpt2 --seq 1024 --max-sequence 1024 --precision bfloat16)
[ "$quick" = 1 ] && gpt2=(--blocks 2 --heads 1 --channels 16 --vocabulary 257 --max-sequence 16 --seq 16 --precision bfloat16)
# Two chunks on each of 4 devices need 8 stages; the CPU's losses on one device are the reference.
deep=(--micro 8 --seq 16 --warmup 0 --format json --blocks 8 --heads 2 --channels 32 --vocabulary 257
    --max-sequence 32)

part_slices() {
    local code=0
    tests slices cuda::devices_say cuda::events_lie cuda::words_in_memory || code=$?
    found "$passed tests passed"
    [ "$code" = 0 ] || fail "$(why slices.txt); $(cat found)"
}

part_accuracy() {
    local p fixed floating code=0 # fixed: schedules whose order does not depend on costs
    for p in 2 4; do
        figures schedules "$bin/pipesim" accuracy $p 8 8 2>"left-out$p" | grep -vx 1f1b >"fixed$p"
        figures schedules "$bin/pipesim" run $p 8 8 | grep -vxFf "fixed$p" | grep -vx 1f1b >"floating$p"
        mapfile -t fixed <"fixed$p"
        mapfile -t floating <"floating$p"
        [ "$quick" = 1 ] && fixed=(naive zb-h1) floating=(zb-1p)
        measured_accuracy report "p$p-fixed" $p "${fixed[@]}" || code=1
        measured_accuracy run "p$p-floating" $p "${floating[@]}" || code=1
        figures accuracy p$p-*/ | sed "s/^/$p slices: /" | tee "line$p" || code=1
    done
    found "$(cat line2 line4 | paste -sd';' | sed 's/;/; /g')"
    return $code
}

# measured_accuracy COMMAND FOLDER P NAME...: one report, or two with half as many models if the GPU's memory is too small.
# `report accuracy` accepts schedules in fixed order; for the others, `run` measures costs first and gives the same figures.
measured_accuracy() {
    local command=$1 folder=$2 p=$3; shift 3
    local steps=12 half=$(($# / 2)) call
    [ "$quick" = 1 ] && steps=2
    call=(--device cuda --gpu-slices "$p" --stages "$p" --micro 8 --schedule "$(joined "$@")" --steps $steps "${large[@]}" --quiet
        --output "$PWD/$folder/")
    mkdir -p "$folder"
    if [ "$command" = run ]; then
        pipesim run "${call[@]}" --format json >"$folder/out" 2>"$folder/err" && mv "$folder/out" "$folder/accuracy.json" && return 0
    else
        pipesim report accuracy --calibrate-micro 8 "${call[@]}" >"$folder/out" 2>"$folder/err" && return 0
    fi
    cat "$folder/err"
    mv "$folder" "failed-$folder"
    [ "$half" -gt 0 ] && grep -q 'memory' "failed-$folder/err" || return 1
    measured_accuracy "$command" "$folder-a" "$p" "${@:1:half}" && measured_accuracy "$command" "$folder-b" "$p" "${@:half+1}"
}

# both sides of each choice in turn, and a table of them
part_choices() {
    local code=0
    cargo_tests choices.txt env ${sizes[@]+"${sizes[@]}"} "$bin/training" cuda::choices:: --nocapture --test-threads=1 || code=$?
    {
        echo '| choice | ms | launches | ms before | launches before | ratio |'
        echo '|---|---|---|---|---|---|'
        sed -nE 's/^choice (.*): ([0-9.]+) ms in ([0-9]+) launches, before ([0-9.]+) ms in ([0-9]+), ([0-9.]+) times$/| \1 | \2 | \3 | \4 | \5 | \6 |/p' choices.txt
    } >table.txt
    found "$(sed -nE 's/^choice (.*): ([0-9.]+) ms in .*, before ([0-9.]+) ms.*/\1 \2 (\3)/p' choices.txt | paste -sd, | sed 's/,/, /g') ms, before in brackets"
    [ "$code" = 0 ] || fail "$(why choices.txt)"
}

losses_of_one() {
    "$bin/pipesim" run "${deep[@]}" --device cpu --stages 1 --schedule 1f1b --steps "$1" --quiet --output "$out/.unused/" >one.json
}

part_losses() {
    local code=0 p names steps=10 precisions=(float32 bfloat16) tolerance precision
    rm -f lines
    [ "$quick" = 1 ] && steps=2
    for p in 2 4; do
        figures schedules "$bin/pipesim" run "$p" 8 4 >"names$p"
        figures schedules "$bin/pipesim" run "$p" 8 8 >"all$p"
        [ "$quick" = 1 ] && { grep -xE '1f1b|zb-v' "names$p" >q || true; mv q "names$p"; grep -xE '1f1b|hanayo' "all$p" >q; mv q "all$p"; }
        comm -13 <(sort "names$p") <(sort "all$p") >"deeper$p"
        for precision in "${precisions[@]}"; do
            tolerance=1e-4
            [ $precision = bfloat16 ] && tolerance=2e-2
            names=$(paste -sd, "names$p")
            "${golden_losses[@]}" $tolerance "$names" "golden-$p-$precision" "${golden[@]}" --device cuda --gpu-slices "$p" \
                --stages "$p" --steps $steps --precision $precision || code=1
            [ -s "deeper$p" ] || continue
            names=$(paste -sd, "deeper$p")
            [ -e one.json ] || losses_of_one $steps
            losses_of one.json - $tolerance "$names" "deeper-$p-$precision" "${deep[@]}" --device cuda --gpu-slices "$p" \
                --stages "$p" --steps $steps --precision $precision || code=1
        done
    done
    found "$(sort -u all2 all4 | wc -l) schedules on 2 and 4 slices; $(sed 's/: .* difference / /' lines | paste -sd';' | sed 's/;/; /g')"
    [ $code = 0 ] || fail "losses differ or runs failed, see log.txt; $(cat found)"
}

# worst SUFFIX: the largest error of the kernels of one precision
worst() { { grep -E "^[a-z_() ]*$1[ :]" kernels.txt | grep -oE 'largest error [0-9.e-]+' || echo "largest error unknown"; } | sort -g -k 3 | tail -n 1 | cut -d' ' -f 3; }

part_kernels() {
    local only=(kernels::)
    [ "$quick" = 1 ] && only=(kernels::bias kernels::classifier kernels::layernorm kernels::optimizer)
    local code=0
    cargo_tests kernels.txt "$bin/training" "${only[@]}" --nocapture --test-threads=4 || code=$?
    found "$passed tests passed; largest error, of a tensor's largest magnitude: float32 $(worst _f32), bfloat16 $(worst _bf16)"
    [ "$code" = 0 ] || fail "$(why kernels.txt); $(cat found)"
}

# what earlier parts skipped
part_shard() {
    local code=0 only=(cuda::)
    [ "$quick" = 1 ] && only=(cuda::wrong_calls cuda::laps)
    tests shard "${only[@]}" --skip cuda::mesh:: --skip cuda::times:: --skip cuda::choices:: --skip $held --skip $ten --skip $epilogues || code=$?
    found "$passed tests passed"
    [ "$code" = 0 ] || fail "$(why shard.txt); $(cat found)"
}

# tests by NCCL do nothing without enough GPUs; their names have no slices
part_mesh() {
    local code=0 only=(cuda::mesh::)
    [ "$quick" = 1 ] && only=(cuda::mesh::bfloat16_stays_close_on_a_mesh)
    tests mesh "${only[@]}" || code=$?
    found "$passed tests passed, with $(nvidia-smi -L 2>/dev/null | wc -l) GPUs"
    [ "$code" = 0 ] || fail "$(why mesh.txt); $(cat found)"
}

part_steps() {
    local code=0 outcomes=() steps=5 sequences=64 names=1f1b,zb-v barrier
    [ "$quick" = 1 ] && steps=1 sequences=2 names=1f1b
    if pipesim run --device cuda --stages 1 --micro 1 --batch $sequences --schedule 1f1b --steps $steps "${gpt2[@]}" --format json --quiet \
        --output "$PWD/report-large/" >large.json 2>large.err; then
        outcomes+=("$sequences sequences: $(figures iterations large.json)")
    else
        outcomes+=("$sequences sequences failed ($?): $(last_error large.err)")
        code=1
    fi
    for barrier in 1 4; do
        if pipesim run --device cuda --gpu-slices 2 --stages 2 --micro 4 --schedule $names --steps $((4 * steps)) --back-to-back $barrier \
            "${large[@]}" --format json --quiet --output "$PWD/report-$barrier/" >run-$barrier.json 2>run-$barrier.err; then
            outcomes+=("$barrier steps in a row: $(figures iterations run-$barrier.json)")
        else
            outcomes+=("$barrier steps in a row failed ($?): $(last_error run-$barrier.err)")
            code=1
        fi
    done
    found "$(listed "${outcomes[@]}")"
    return $code
}

part_connections() {
    local count code=0 steps=10 micro=8 names=1f1b,zb-v,dualpipe outcomes=()
    [ "$quick" = 1 ] && steps=1 micro=4 names=1f1b
    for count in 8 32; do
        if CUDA_DEVICE_MAX_CONNECTIONS=$count pipesim run --device cuda --gpu-slices 4 --stages 4 --micro $micro --schedule $names \
            --steps $steps "${large[@]}" --format json --quiet --output "$PWD/report-$count/" >run-$count.json 2>run-$count.err; then
            outcomes+=("$count queues: $(figures iterations run-$count.json)")
        else
            outcomes+=("$count queues failed ($?): $(last_error run-$count.err)")
            cat run-$count.err
            code=1
        fi
    done
    found "$(listed "${outcomes[@]}")"
    return $code
}

part_sanitizer() {
    local program tool code outcomes=() failed=0 ran=0 summary options
    local site
    site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    program=$(command -v compute-sanitizer || find -L /usr/local/cuda*/bin /opt/nvidia "$site/nvidia/cu13/bin" -maxdepth 3 -name compute-sanitizer \
        -type f 2>/dev/null | head -n 1) || true
    [ -n "$program" ] || skip "no compute-sanitizer on this machine; pip install nvidia-cuda-sanitizer-api"
    local name own=()
    for name in $(grep -oh 'KERNEL([a-z_]*,' "$root"/kernels/cuda/*.cu | tr -d '(,' | sed 's/KERNEL//' | sort -u); do own+=(--kernel-name "kne=${name}_bf16"); done
    for tool in memcheck racecheck; do
        # only our kernels, by name: cuBLASLt's are slow under the tool, and not ours to fix
        code=0 options=("${own[@]}")
        # an expected error of a driver call is not an error of the kernels
        [ $tool = racecheck ] || options+=(--report-api-errors no)
        tell timeout --foreground -k 2 50 "$program" --tool $tool ${options[@]+"${options[@]}"} --error-exitcode 9 "$bin/pipesim" run --device cuda --stages 1 --micro 2 \
            --schedule 1f1b --steps 1 --warmup 0 --blocks 1 --heads 2 --channels 64 --vocabulary 257 --max-sequence 160 --seq 130 \
            --precision bfloat16 --timeout 100 --quiet --output "$PWD/report-$tool/" >$tool.txt 2>&1 || code=$?
        summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' $tool.txt | tail -n 1 | sed 's/^=* *//') || true
        case $code,$summary in
            0,*" 0 errors"* | 0,*" 0 hazards"*) outcomes+=("$tool: no errors"); ran=1 ;;
            *,"ERROR SUMMARY: "[1-9]* | *,"RACECHECK SUMMARY: "[1-9]*) outcomes+=("$tool: $summary"); failed=1 ;;
            124,*) outcomes+=("$tool: not done after 50 s") ;;
            *) outcomes+=("$tool refused ($code): $(grep -v '^+' $tool.txt | grep -E 'not supported|Error|error|expected' | head -n 1 | sed 's/^=* *//' | cut -c -200)") ;;
        esac
        head -n 60 $tool.txt
    done
    found "$(listed "${outcomes[@]}")"
    [ $failed = 0 ] || return 1
    [ $ran = 1 ] || exit $SKIPPED
}
