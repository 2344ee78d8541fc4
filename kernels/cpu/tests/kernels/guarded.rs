//! Slices between pages that nobody may touch, and what all tests need besides.

use cpu_kernels::instructions::Instructions;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::Mutex;

/// Lengths just below, at and above those of vectors, tiles and panels.
pub const SIZES: [usize; 8] = [1, 3, 7, 17, 31, 33, 65, 129];

/// Which of its ends a slice has at a page that nobody may touch.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    Start,
    End,
}

/// Numbers next to a page that nobody may touch: an access beyond them ends the process.
pub struct Guarded {
    mapping: *mut libc::c_void,
    bytes: usize,
    start: *mut f32,
    length: usize,
}

impl Guarded {
    pub fn new(values: &[f32], side: Side) -> Guarded {
        // SAFETY: `sysconf` only reads; the mapping is new, and its middle, which is made writable, holds the values.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let content = size_of_val(values).next_multiple_of(page);
            let bytes = content + 2 * page;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED);
            let first = mapping.byte_add(page);
            assert_eq!(libc::mprotect(first, content, libc::PROT_READ | libc::PROT_WRITE), 0);
            let offset = match side {
                Side::Start => 0,
                Side::End => content - size_of_val(values),
            };
            let start: *mut f32 = first.byte_add(offset).cast();
            start.copy_from_nonoverlapping(values.as_ptr(), values.len());
            Guarded { mapping, bytes, start, length: values.len() }
        }
    }

    /// `length` times a number that no kernel may take for its own.
    pub fn filled(length: usize, side: Side) -> Guarded {
        Guarded::new(&vec![7.5; length], side)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.mapping, self.bytes) };
    }
}

impl Deref for Guarded {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: the values are initialised and live as long as the mapping.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

/// Runs `work` under each set of instructions that the processor has, and on both sides. The limit is the whole process's, so
/// one test at a time.
pub fn everywhere(mut work: impl FnMut(Instructions, Side)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
    for set in Instructions::ALL.into_iter().filter(|set| *set <= Instructions::widest()) {
        set.limit();
        [Side::Start, Side::End].into_iter().for_each(|side| work(set, side));
    }
    Instructions::Avx512.limit();
}

/// Numbers in [-1, 1).
pub fn noise(length: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

/// Fails unless each number is as expected, to `tolerance` times 1 + its magnitude.
pub fn compare(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let found = f64::from(found);
        assert!(
            (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
            "{what}: element {at} is {found}, expected {expected}"
        );
    }
}

/// The same numbers in double precision.
pub fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Collects what a kernel computes under each set of instructions with fused multiplication and addition, and fails unless all
/// have the same bits.
#[derive(Default)]
pub struct SameBits(Option<Vec<u32>>);

impl SameBits {
    pub fn check(&mut self, what: &str, set: Instructions, found: &[f32]) {
        if set == Instructions::Baseline {
            return;
        }
        let bits: Vec<u32> = found.iter().map(|value| value.to_bits()).collect();
        match &self.0 {
            None => self.0 = Some(bits),
            Some(first) => assert!(*first == bits, "{what}: {set:?} gives other bits"),
        }
    }
}
