//! Any bytes as an input of the check `costs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| checks::costs(input));
