//! What of the crate for GPUs needs none: the cache of compiled kernels, and samples of clocks.

use pipesim_gpu::api::GpuState;
use pipesim_gpu::{Samples, digest, read_cached, write_cached};
use std::{env, fs};

#[test]
fn the_hash_tells_parts_apart() {
    assert_ne!(digest(0, &["ab", "c"]), digest(0, &["a", "bc"]));
    assert_ne!(digest(0, &["a"]), digest(1, &["a"]));
}

#[test]
fn a_damaged_cache_is_a_miss() {
    let folder = env::temp_dir().join(format!("pipesim-cache-{}", std::process::id()));
    let path = folder.join("sm_90_f32-0");
    assert_eq!(read_cached(&path), None);
    write_cached(&path, b"code");
    assert_eq!(read_cached(&path).as_deref(), Some(&b"code"[..]));
    let mut bytes = fs::read(&path).unwrap();
    bytes.pop();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read_cached(&path), None);
    fs::write(&path, &bytes[..3]).unwrap();
    assert_eq!(read_cached(&path), None);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn samples_are_summed_up() {
    let mut samples = Samples { most_mhz: 1980, ..Samples::default() };
    let states = [(1980, 600_500, 0), (1410, 699_000, 0x04), (1800, 500_000, 0x44), (1500, 1, 0x01)];
    for (clock_mhz, power, reasons) in states {
        samples.add(GpuState { clock_mhz, power_mw: Some(power), reasons });
    }
    let words = "1410 to 1980 of 1980 MHz, at most 699 W, 4 samples; slowed down: hardware thermal slowdown in 25 % of samples, \
                 power cap in 50 % of samples";
    assert_eq!(samples.to_string(), words);
    assert_eq!(Samples { count: 1, ..Samples::default() }.slowed(), None, "idleness slows nothing down");
}
