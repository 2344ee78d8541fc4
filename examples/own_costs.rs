//! Your own costs per device, with communication, and the effect of a memory cap on the best order.

use pipesim::{Costs, Error, GivenCosts, Selection};

fn main() -> Result<(), Error> {
    let costs = Costs::given("F=18.5,I=18.1,W=9.3,comm=0.6".parse::<GivenCosts>()?);
    for cap in [None, Some(4.0), Some(2.5)] {
        let selection = Selection { memory_cap: cap, ..Selection::new(8, 32) };
        let resolved = selection.resolve("auto", &costs)?;
        let prediction = resolved.predict()?.prediction;
        println!("cap {cap:?}: {} takes {:.1}", prediction.schedule, prediction.metrics.makespan);
    }
    Ok(())
}
