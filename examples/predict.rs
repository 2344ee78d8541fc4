//! Schedules by name, side by side: which is the fastest for 4 devices and 8 micro-batches?

fn main() -> Result<(), pipesim::Error> {
    for name in ["naive", "gpipe", "1f1b", "zb-v"] {
        let prediction = pipesim::predict(name, 4, 8)?;
        let figures = &prediction.metrics;
        println!("{name}: {} {}s, bubble {:.1} %", figures.makespan, prediction.time_unit, 100.0 * figures.bubble);
    }
    Ok(())
}
