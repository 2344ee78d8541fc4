//! One step of PyTorch's interleaved 1F1B, seen by `pipesim.record` and by the profiler.

use super::read;
use pipesim_import::Run;
use std::collections::BTreeMap;
use std::path::Path;

fn durations_ns(run: &Run) -> BTreeMap<String, u64> {
    run.timelines[0].ops().map(|(op, span)| (op.to_string(), span.end_ns - span.start_ns)).collect()
}

#[test]
fn records_and_traces_of_one_step_have_the_same_op_times() {
    let folder =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/record/interleaved_p2_m8_profiled"));
    let [records, traces] = ["records", "traces"].map(|name| durations_ns(&read(&[folder.join(name)]).unwrap()));
    assert_eq!(records.len(), 64);
    assert_eq!(records.keys().collect::<Vec<_>>(), traces.keys().collect::<Vec<_>>());
    for (op, recorded) in &records {
        let error = *recorded as f64 / traces[op] as f64 - 1.0;
        assert!(error.abs() < 0.04, "{op}: {recorded} ns in the record, {} in the trace", traces[op]);
    }
    let sum = |of: &BTreeMap<String, u64>| of.values().sum::<u64>() as f64;
    assert!((sum(&records) / sum(&traces) - 1.0).abs() < 0.005);
}
