//! Any bytes as an input of the check `csv`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| checks::csv(input));
