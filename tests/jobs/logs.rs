//! Logs: lines in the form that each framework prints them, in the surroundings that launchers and terminals add.

use pipesim_jobs::log::{self, Log};
use std::io::{BufReader, Read};

fn read(text: &str) -> Log {
    log::read("run.log", &mut text.as_bytes()).unwrap()
}

/// A line of Megatron-LM for an iteration that took this long.
fn megatron(iteration: u32, ms: f64) -> String {
    format!(
        " [2025-07-01 10:00:00.123456] iteration {iteration:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): {ms:.1} | \
         throughput per GPU (TFLOP/s/GPU): 411.5 | learning rate: 1.500000E-04 | global batch size: {:5} | \
         lm loss: 1.043E+01 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | \
         number of nan iterations:   0 |\n",
        1000,
        iteration * 64,
        64
    )
}

/// Iterations of 500 to 509 ms after a slow first one.
fn run() -> String {
    (1..=11).map(|at| megatron(at, if at == 1 { 9000.0 } else { 498.0 + f64::from(at) })).collect()
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-4, "{found} is not {expected}");
}

#[test]
fn megatrons_first_step_is_dropped_and_the_median_is_of_the_rest() {
    let log = read(&run());
    assert_eq!(log.framework.as_deref(), Some("megatron-core"));
    assert_eq!((log.measurement.steps, log.measurement.dropped.first), (10, 1));
    // 500, 501, ..., 509.
    close(log.measurement.median_s, 0.5045);
    assert_eq!(log.measurement.printed_tflops, Some(411.5));
    assert_eq!(log.measurement.global_batch, Some(64));
    assert!(log::is_log(&run()) && !log::is_log("#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 4\n"));
}

#[test]
fn surroundings_change_nothing() {
    let plain = read(&run()).measurement;
    let each = |change: &dyn Fn(&str) -> String| run().lines().map(change).collect::<Vec<_>>().join("\n") + "\n";
    let variants = [
        each(&|line| format!("7: {line}")),
        each(&|line| format!("[rank7]:{line}\r")),
        each(&|line| format!("[default7]:{line}")),
        each(&|line| format!("(TrainActor pid=1) {line}")),
        each(&|line| format!("2025-07-01T10:00:00Z stdout F {line}")),
        each(&|line| format!("\u{1b}[32m{line}\u{1b}[0m")),
        each(&|line| format!("progress 10%\rprogress 20%\r{line}")),
        each(&|line| format!("{line}\n{line}")),
        each(&|line| format!("\0\u{7}{line}\nNCCL INFO iteration of channels 3/8")),
        run() + " [2025-07-01 10:00:00] iteration       12/    1000 | elapsed time per iteration (ms): 1",
        run() + &"x".repeat(3_000_000),
    ];
    for (at, variant) in variants.iter().enumerate() {
        assert_eq!(read(variant).measurement, plain, "variant {at}");
    }
    let mut bytes = b"\xff\xfe\x80 binary\n".to_vec();
    bytes.extend(run().bytes());
    assert_eq!(log::read("run.log", &mut bytes.as_slice()).unwrap().measurement, plain);
}

#[test]
fn arguments_memory_and_timers_of_megatron_are_read() {
    let argument = |name: &str, value: &str| format!("  {name} {} {value}\n", ".".repeat(48 - name.len()));
    let text = format!(
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 4, \
         pipeline-model-parallel size: 2\n------------------------ arguments ------------------------\n{}{}{}\
         -------------------- end of arguments ---------------------\n\
         > padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)\n\
         \x20> number of parameters on (tensor, pipeline) model parallel rank (3, 1): 123456789\n{}\
         Theoretical memory footprints: weight and optimizer=1000.00 MB, activation=200.50 MB, total=1200.50 MB\n\
         [Rank 8] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 3.0 | max reserved: 4096.0\n\
         (min, max) time across ranks (ms):\n    forward-backward {}: (400.00, 410.50)\n{}",
        argument("hidden_size", "4096"),
        argument("recompute_modules", "['core_attn', 'mlp']"),
        argument("data_path", ""),
        megatron(1, 9000.0),
        ".".repeat(31),
        run()
    );
    let log = read(&text);
    assert_eq!(log.settings.value("hidden-size"), Some("4096"));
    assert_eq!(log.settings.value("recompute_modules"), Some("['core_attn', 'mlp']"));
    assert_eq!(log.settings.get("hidden_size").unwrap().place, "run.log:3");
    assert_eq!((log.world, log.degrees["tp"], log.degrees["pp"], log.degrees["dp"]), (Some(16), 4, 2, 2));
    assert_eq!((log.padded_vocab, log.parameters["(3, 1)"]), (Some(50688), 123_456_789));
    assert_eq!(log.measurement.allocated_bytes[&8], 2 << 30);
    assert_eq!(log.measurement.reserved_bytes[&8], 4 << 30);
    let bridge = "[Rank 3] (after 2 iterations) memory (GB) | mem-max-allocated-gigabytes: 12.5 | mem-max-reserved-gigabytes: 14.25\n";
    let bridge = read(&(run() + bridge)).measurement;
    assert_eq!((bridge.allocated_bytes[&3], bridge.reserved_bytes[&3]), (12_500_000_000, 14_250_000_000));
    assert_eq!(log.theoretical_bytes.unwrap()[0], 1000 << 20);
    assert_eq!(log.measurement.timers["forward-backward"].max_ms, 410.5);
}

#[test]
fn of_timers_all_forms_are_read() {
    let text = run()
        + "time (ms) | fwd_microstep: 12.50 | bwd_microstep: 25.00\n\
           max time across ranks (ms):\n    optimizer ......................................: 3.25\n\
           times across ranks (ms):\n  forward-compute:\n     rank  0: 7.00\n     rank  1: 9.00\n     rank  2: 8.00\n";
    let timers = read(&text).measurement.timers;
    assert_eq!((timers["fwd_microstep"].min_ms, timers["bwd_microstep"].max_ms), (12.5, 25.0));
    assert_eq!(timers["optimizer"].max_ms, 3.25);
    assert_eq!((timers["forward-compute"].min_ms, timers["forward-compute"].max_ms), (7.0, 9.0));
}

#[test]
fn torchtitans_tokens_become_seconds() {
    let step = |at: u32, tps: &str| {
        format!(
            "[rank0]:[titan] 2025-07-01 10:00:00,123 - root - INFO - \u{1b}[31mstep: {at:2}  \u{1b}[32mloss:  8.12345  \u{1b}[33m\
             grad_norm:  1.2345  \u{1b}[36mmemory: 40.00GiB(50.57%)  \u{1b}[34mtps: {tps}  \u{1b}[36mtflops: 300.25  \u{1b}[35mmfu: 30.36%\u{1b}[39m\n"
        )
    };
    let text = "[rank0]:[titan] - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n\
                [rank0]:[titan] - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n\
                [rank0]:[titan] - root - INFO - Peak FLOPS used for computing MFU: 9.890e+14\n\
                [rank0]:[titan] - root - INFO - Trainer is initialized with local batch size 2, global batch size 8, \
                gradient accumulation steps 1, sequence length 8192, total steps 40 (warmup 8)\n"
        .to_string()
        + &step(1, "1,024")
        + &[10, 20, 30, 40].map(|at| step(at, "8,192")).concat();
    let log = read(&text);
    assert_eq!((log.framework.as_deref(), log.world), (Some("torchtitan"), Some(8)));
    assert_eq!(log.gpu.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(log.peak_flops, Some(9.89e14));
    // 8 sequences of 8192 tokens at 8192 tokens per second on each of 8 GPUs.
    close(log.measurement.median_s, 1.0);
    assert_eq!(log.measurement.printed_tokens_per_s, Some(8192.0));
    assert_eq!(log.measurement.reserved_bytes[&0], 40 << 30);
    // Without the batch, tokens per second are all there is.
    let bare = read(&(1..=5).map(|at| step(at, "8,192")).collect::<String>()).measurement;
    assert_eq!((bare.median_s, bare.steps, bare.printed_tokens_per_s), (0.0, 4, Some(8192.0)));
}

#[test]
fn each_frameworks_line_is_read() {
    let cases: [(&str, Option<&str>, f64); 11] = [
        (
            " samples/sec: 7.799 | iteration @/ 100 | elapsed time per iteration (ms): 2500.0 | learning rate: 2.1E-06 | approx flops per GPU: 112.9TFLOPS |",
            None,
            2.5,
        ),
        ("Step Time : 2.50s GPU utilization: 420.5 TFLOP/s/GPU", Some("megatron-bridge"), 2.5),
        (
            " iteration @/ 100 | consumed samples: 64 | consumed tokens: 131072 | elapsed time per iteration (ms): 2500.0 | samples per second: 25.600 | tokens per gpu per second (tgs): 6553.600 | TFLOPs: 120.50 |",
            Some("megatron-deepspeed"),
            2.5,
        ),
        (
            " [2025-07-01 10:00:00] iteration @/ 100 | elapsed time per iteration (ms): 2500.0/9999.9 | tokens per GPU (tokens/s/GPU): 10005.5/9903.7 |",
            Some("megatron-core"),
            2.5,
        ),
        ("Step Time : 2.50s GPU utilization: 420.5MODEL_TFLOP/s/GPU", Some("megatron-bridge"), 2.5),
        (
            "07/01/2025 10:00:00 [INFO|DP=0]: iteration: @ / 100 | consumed_tokens: 1.05M | elapsed_time_per_iteration_ms: 2.5K | tokens_per_sec: 420K | tokens_per_sec_per_gpu: 52.4K | global_batch_size: 1.05M | model_tflops_per_gpu: 410",
            Some("nanotron"),
            2.5,
        ),
        ("steps: @ loss: 8.1234 iter time (s): 2.500 samples/sec: 25.600", Some("deepspeed"), 2.5),
        (
            "Training epoch 0, iteration @/99 | lr: 1e-06 | global_batch_size: 128 | global_step: @ | reduced_train_loss: 11.0 | train_step_timing in s: 2.5 | consumed_samples: 128",
            None,
            2.5,
        ),
        ("Epoch 0: :  1%| | @/1000 [00:30<50:00, v_num=0, global_step=@.0, train_step_timing in s=2.500]", None, 2.5),
        ("Epoch 0:  10%|#  | @/100 [00:10<03:45, 0.40it/s, v_num=1, loss=3.2]", None, 2.5),
        (
            "{'loss': 1.5, 'memory(GiB)': 11.29, 'train_speed(iter/s)': 0.4, 'epoch': 0.1, 'global_step/max_steps': '@/100'}",
            None,
            2.5,
        ),
    ];
    for (line, framework, seconds) in cases {
        let text: String = (1..=9).map(|at| line.replace('@', &at.to_string()) + "\n").collect();
        let log = read(&text);
        assert_eq!(log.framework.as_deref(), framework, "{line}");
        assert!((log.measurement.median_s - seconds).abs() < 1e-6, "{line}: {:?}", log.measurement);
    }
    let timer = "[INFO] [timer.py:260:stop] epoch=0/micro_step=@/global_step=@, RunningAvgSamplesPerSec=1.0, \
                 CurrSamplesPerSec=6.4, MemAllocated=1.0GB, MaxMemAllocated=2.0GB\n";
    let text: String = "[INFO] [config.py:1001:print]   train_batch_size ............. 16\n".to_string()
        + &(1..=9).map(|at| timer.replace('@', &at.to_string())).collect::<String>();
    let log = read(&text);
    close(log.measurement.median_s, 2.5);
    assert_eq!(log.measurement.allocated_bytes[&0], 2 << 30);
}

#[test]
fn steps_after_pauses_do_not_count() {
    let text: String = (1..=12)
        .map(|at| {
            let pause = if at == 6 { "  saving checkpoint at iteration 6 to /c\n" } else { "" };
            megatron(at, if at == 1 || at == 7 { 9000.0 } else { 500.0 }) + pause
        })
        .collect();
    let measurement = read(&text).measurement;
    assert_eq!((measurement.dropped.first, measurement.dropped.after_pause, measurement.steps), (1, 1, 10));
    assert_eq!(measurement.range_s, [0.5, 0.5]);
}

#[test]
fn the_last_batch_size_and_the_last_run_count() {
    let small = |line: String| line.replace("global batch size:    64", "global batch size:    32");
    let ramp: String =
        (1..=5).map(|at| small(megatron(at, 200.0))).chain((6..=15).map(|at| megatron(at, 500.0))).collect();
    let measurement = read(&ramp).measurement;
    assert_eq!((measurement.dropped.other_batch, measurement.global_batch), (5, Some(64)));
    close(measurement.median_s, 0.5);
    let twice = run() + &(1..=11).map(|at| megatron(at, 250.0)).collect::<String>();
    let log = read(&twice);
    assert_eq!(log.runs, 2);
    close(log.measurement.median_s, 0.25);
    let failed = twice + "------------------------ arguments ------------------------\nout of memory\n";
    close(read(&failed).measurement.median_s, 0.25);
}

#[test]
fn lines_have_the_weight_of_their_interval() {
    // 100 steps of 400 ms on average, then 2 single ones.
    let text: String =
        [(1, 9000.0), (2, 410.0), (102, 400.0), (103, 500.0), (104, 500.0)].map(|(at, ms)| megatron(at, ms)).concat();
    close(read(&text).measurement.median_s, 0.4);
}

#[test]
fn few_steps_are_said() {
    assert!(read(&megatron(1, 500.0)).measurement.few);
    assert!(!read(&run()).measurement.few);
    let error = log::read("run.log", &mut "nothing\n".as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("run.log:") && error.contains("expected lines of training steps"), "{error}");
}

/// A line without an end.
struct Endless(usize);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = buffer.len().min(self.0);
        buffer[..read].fill(b'7');
        self.0 -= read;
        Ok(read)
    }
}

#[test]
fn a_line_without_an_end_is_skipped() {
    let text = run() + " iteration 12/1000 | elapsed time per iteration (ms): ";
    let mut reader = BufReader::new(text.as_bytes().chain(Endless(20_000_000)));
    close(log::read("run.log", &mut reader).unwrap().measurement.median_s, 0.5045);
}

#[test]
fn damaged_logs_cause_no_panic_and_no_other_number() {
    let text: String = (1..=40).map(|at| megatron(at, 500.0)).collect();
    let mut state = 12345u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..1000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(5) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.drain(at..(at + random(300)).min(bytes.len()))),
                2 => bytes.insert(at, b"\n\r\0|:."[random(6)]),
                3 => bytes.truncate(at.max(bytes.len() / 2)),
                _ => {
                    let part = bytes[at..(at + random(300)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        // At most 5 of 40 lines are damaged: the median is that of the others.
        let measurement = log::read("run.log", &mut bytes.as_slice()).unwrap().measurement;
        close(measurement.median_s, 0.5);
    }
}

/// What the frameworks' own code printed, with numbers that `tests/jobs/printed/print.py` gave it.
fn printed(name: &str) -> Log {
    let path = crate::in_repository(&format!("tests/jobs/printed/{name}.log"));
    let file = std::fs::File::open(path).unwrap();
    log::read("run.log", &mut BufReader::new(file)).unwrap()
}

#[test]
fn lines_that_the_frameworks_print_are_read() {
    let log = printed("megatron");
    assert_eq!(log.settings.value("hidden-size"), Some("4096"));
    assert_eq!(log.settings.value("overlap_p2p_communication_warmup_flush_with_long_name"), Some("False"));
    assert_eq!(log.settings.value("recompute_modules"), Some("['core_attn', 'mlp']"));
    // Iterations 2 to 12 of 501 to 511 ms.
    close(log.measurement.median_s, 0.506);
    assert_eq!(
        (log.measurement.steps, log.measurement.power_w, log.measurement.printed_tflops),
        (11, Some(300.0), Some(410.5))
    );
    let timers = &log.measurement.timers;
    assert_eq!((timers["forward-backward"].min_ms, timers["forward-backward"].max_ms), (400.25, 410.5));
    assert_eq!((timers["all-grads-sync"].max_ms, timers["optimizer"].max_ms), (4.5, 4.5));
    assert_eq!((timers["forward-compute"].max_ms, timers["backward-compute"].max_ms), (9.0, 2.0));
    assert_eq!((log.measurement.allocated_bytes[&3], log.measurement.reserved_bytes[&3]), (2 << 30, 4 << 30));
    let old = printed("megatron-2023");
    assert!(old.version_hint.unwrap().starts_with("before 2024-03"));
    close(old.measurement.median_s, 0.506);
    for (name, seconds, tokens) in [
        ("megatron-deepspeed", 0.512, Some(32000.0)),
        ("megatron-bridge", 0.512, None),
        ("nanotron", 1.25, Some(105e3)),
    ] {
        let log = printed(name);
        assert_eq!(log.framework.as_deref(), Some(name));
        close(log.measurement.median_s, seconds);
        assert_eq!(log.measurement.printed_tokens_per_s, tokens);
    }
    let titan = printed("torchtitan").measurement;
    assert_eq!((titan.steps, titan.printed_tokens_per_s, titan.reserved_bytes[&0]), (4, Some(8192.0), 40 << 30));
}

#[test]
fn a_last_line_without_its_batch_size_changes_none() {
    let cut = run()
        + " [2025-07-01 10:00:00] iteration       12/    1000 | elapsed time per iteration (ms): 500.0 | learning";
    let measurement = read(&cut).measurement;
    assert_eq!((measurement.steps, measurement.dropped.other_batch, measurement.global_batch), (11, 0, Some(64)));
}
