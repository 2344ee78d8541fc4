//! Trains GPT-2 with two schedules on two CPU threads, and predicts each step from a calibrated one.

use pipesim::{Error, Experiment};

fn main() -> Result<(), Error> {
    let results = Experiment::new(["1f1b", "zb-v"], 2, 4).run()?;
    for outcome in &results.outcomes {
        println!("{}: loss {:.3}, {:.0} ms", outcome.schedule, outcome.losses[0], outcome.iteration_ms.median);
    }
    Ok(())
}
