//! A step of Llama-3-70B on 64 H100s: time, MFU, memory, and whether it fits.

use pipesim::{Error, ParallelConfig, Recompute, Zero, predict_model};

fn main() -> Result<(), Error> {
    let layout = ParallelConfig {
        tp: 8,
        pp: 4,
        dp: 2,
        micro: 32,
        sequence: 8192,
        sequence_parallel: true,
        recompute: Recompute::Selective,
        zero: Zero::Optimizer,
        ..ParallelConfig::default()
    };
    for schedule in ["1f1b", "zb-h1"] {
        let prediction = predict_model("llama-3-70b", "h100-sxm", layout.clone(), schedule)?;
        let (estimate, gib) = (&prediction.estimate, f64::from(1 << 30));
        let fullest = estimate.memory.fullest();
        println!(
            "{schedule}: {:.2} s per step on {} GPUs, MFU {:.1} %, {:.1} of {:.1} GiB, fits: {}",
            estimate.iteration_s,
            estimate.gpus,
            100.0 * estimate.mfu,
            fullest.total as f64 / gib,
            estimate.memory.capacity_bytes as f64 / gib,
            prediction.fits(),
        );
        if let Some(reason) = &estimate.misfit {
            println!("{reason}");
        }
    }
    Ok(())
}
