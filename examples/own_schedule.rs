//! Your own schedule: written in the schedule language, checked for deadlocks, predicted.

use pipesim::{Costs, Delivery, Error, Selection, check};

const TEXT: &str = r#"
"""1F1B whose first device keeps one forward more in flight."""

def device(r, p, m):
    warmup = min(p - 1 - r + (1 if r == 0 else 0), m)
    return warmup * F + (m - warmup) * (F + B) + warmup * B
"#;

fn main() -> Result<(), Error> {
    let resolved = Selection::new(4, 8).resolve_text("mine", TEXT, &Costs::default())?;
    check(&resolved.graph, Delivery::OneSided)?;
    let predicted = resolved.predict()?;
    println!("{:?}", predicted.timeline().metrics());
    Ok(())
}
