//! Forms of lines that other versions and forks print (printed/README.md names where): time per step, TFLOP/s and tokens per second.

use pipesim_jobs::log;

/// Returns the median step in seconds, TFLOP/s and tokens per second of 20 lines, in which `#` is the number of the step.
fn read(line: &str) -> (f64, Option<f64>, Option<f64>) {
    let text: String = (1..=20).map(|step| line.replace('#', &step.to_string()) + "\n").collect();
    assert!(log::is_log(&text), "{line}");
    let found = log::read("run.log", &mut text.as_bytes()).expect(line).measurement;
    (found.median_s, found.printed_tflops, found.printed_tokens_per_s)
}

#[test]
fn lines_of_versions_and_forks_are_read() {
    let ms = "elapsed time per iteration (ms): 512.5";
    let half = |tflops, tokens| (0.5125, tflops, tokens);
    let forms = [
        (format!(" iteration #/ 500 | {ms} | learning rate 1.0E-04 | total loss 7.5E+00 |"), half(None, None)),
        (format!(" samples/sec: 70.5 | iteration #/ 500 | {ms} | learning rate: 1E-4 | approx flops per GPU: 120.5TFLOPS |"), half(Some(120.5), None)),
        (format!("[2025-01-01 10:00:00] iteration: #/500 | consumed images: 5 | {ms} | throughput per GPU (TFLOP/s/GPU): 120.5 |"), half(Some(120.5), None)),
        (format!("==> iteration #/ 500 | consumed tokens: 8 | {ms} | tokens per gpu per second (tgs): 1500.5 | TFLOPs: 120.5 |"), half(Some(120.5), Some(1500.5))),
        (format!("[2026-01-01 10:00:00.123456] iteration #/ 500 | {ms} | throughput per GPU (TFLOP/s/GPU): 120.5 | tokens/sec/GPU: 7499 |"), half(Some(120.5), Some(7499.0))),
        (format!("[rank-7/8][INFO ] : iteration #/ 500 | {ms}/530.5 | throughput per GPU (TFLOP/s/GPU): 120.5/119.5 | tokens per GPU (tokens/s/GPU): 7499.5/7400.5 |"), half(Some(120.5), Some(7499.5))),
        (format!(" [2024-01-01 10:00:00] iteration #/ 500 | {ms} | throughput per GPU (TFLOP/s/GPU): 120.5 | iteration time: 0.513 s samples/sec: 3.5 |"), half(Some(120.5), None)),
        ("Training epoch 0, iteration #/249 | global_batch_size: 8 | global_step: # | train_step_timing in s: 0.5125 | consumed_samples: 8".to_string(), half(None, None)),
        ("Epoch 0: : #%|## | #/100 [10:48<00:00, reduced_train_loss=0.5, global_step=#.00, train_step_timing in s=0.5125]".to_string(), half(None, None)),
        ("DLLL {\"type\": \"LOG\", \"step\": #, \"data\": {\"global_step\": #.0, \"train_step_timing in s\": 0.5125, \"epoch\": 0}}".to_string(), half(None, None)),
        ("{'train_runtime': '100.5', 'train_samples_per_second': '3.5', 'train_steps_per_second': '2.0', 'epoch': '4'}".to_string(), (0.5, None, None)),
        ("{'train_runtime': 100.5, 'train_samples_per_second': 3.5, 'train_steps_per_second': 2.0, 'epoch': 4.0}".to_string(), (0.5, None, None)),
        ("TrainOutput(global_step=#, metrics={'train_runtime': 100.5, 'train_steps_per_second': 2.0, 'epoch': 1.0})".to_string(), (0.5, None, None)),
        ("[rank3]:[titan] 2026-01-01 10:00:00,123 - root - INFO - step: #  loss:  7.5  memory: 66.5GiB(37.5%)  tps: 10,050  tflops: 314.5  mfu: 13.5%".to_string(), (0.0, Some(314.5), Some(10050.0))),
    ];
    for (line, expected) in forms {
        assert_eq!(read(&line), expected, "{line}");
    }
}
