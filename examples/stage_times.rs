//! Your own costs from a table of stage times, explained: which stage holds the others up?

use pipesim::costs::{CostTable, StageTimes};
use pipesim::{Costs, Error, Selection};

/// Milliseconds per micro-batch and stage: forward, backward for the input, backward for the weights.
const TIMES: [[f64; 3]; 4] = [[18.5, 18.1, 9.3], [18.5, 18.1, 9.3], [18.5, 18.1, 9.3], [24.0, 23.2, 12.9]];

fn main() -> Result<(), Error> {
    let stages = TIMES.map(|[forward, input, weights]| StageTimes { forward, input, weights });
    let mut resolved = Selection::new(4, 8).resolve("1f1b", &Costs::default())?;
    resolved.costs = CostTable::from_stage_times(&resolved.graph.schedule().placement, &stages, 0.6);
    let explanation = resolved.explain()?;
    print!("{explanation}");
    for part in explanation.sensitivities.list.iter().take(3) {
        println!("1 % less time of {} shortens the step by {:.2} %", part.part, part.percent);
    }
    Ok(())
}
