//! Prediction against measurement, op by op, for one schedule trained here.

use pipesim::{Error, Experiment, compare};

fn main() -> Result<(), Error> {
    let results = Experiment { steps: 3, ..Experiment::new(["zb-v"], 2, 4) }.run()?;
    let [predicted, measured] = [&results.report.entries[0].predicted, &results.report.entries[0].measured];
    if let (Some(predicted), Some(measured)) = (predicted, measured) {
        let apart = compare(&predicted.timeline, &measured.timeline)?;
        println!("makespan {:+.1} %, bubble {:+.1} points", 100.0 * apart.makespan, apart.bubble);
    }
    Ok(())
}
