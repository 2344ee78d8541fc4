//! A picture of two schedules on one time scale: `.svg`, `.png`, `.html`, or without an extension a folder with all formats.

use pipesim::{Costs, Error, Report, Selection};

fn main() -> Result<(), Error> {
    let (selection, costs) = (Selection::new(4, 8), Costs::default());
    let [ours, theirs] = [selection.resolve("zb-v", &costs)?, selection.resolve("1f1b", &costs)?];
    let report = Report::predicted(&[ours.predict()?, theirs.predict()?]);
    let written = report.save(std::env::args().nth(1).unwrap_or("reports/latest/".into()))?;
    println!("wrote {}", written[0].display());
    Ok(())
}
