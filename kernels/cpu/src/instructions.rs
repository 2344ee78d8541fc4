//! Which vector instructions the kernels use. The widest that the processor has, unless a narrower set is asked for.

use pulp::{Simd, WithSimd};
use std::sync::atomic::{AtomicU8, Ordering};

/// A set of vector instructions, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// What every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// AVX2 and fused multiplication and addition.
    Avx2,
    /// AVX-512 (F, BW, CD, DQ, VL).
    Avx512,
}

use Instructions::{Avx2, Avx512, Baseline};

/// The widest set that may be used.
static LIMIT: AtomicU8 = AtomicU8::new(Avx512 as u8);

impl Instructions {
    /// All sets, narrowest first.
    pub const ALL: [Instructions; 3] = [Baseline, Avx2, Avx512];

    /// The name that [`Instructions::named`] knows.
    pub fn name(self) -> &'static str {
        match self {
            Baseline => "baseline",
            Avx2 => "avx2",
            Avx512 => "avx512",
        }
    }

    /// The set of this name.
    pub fn named(name: &str) -> Option<Instructions> {
        Instructions::ALL.into_iter().find(|set| set.name() == name)
    }

    /// The widest set that this processor has.
    pub fn widest() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        match pulp::x86::Arch::new() {
            pulp::x86::Arch::V4(_) => return Avx512,
            pulp::x86::Arch::V3(_) => return Avx2,
            _ => {}
        }
        Baseline
    }

    /// Lets this process use no wider set from now on, in all threads.
    pub fn limit(self) {
        LIMIT.store(self as u8, Ordering::Relaxed);
    }
}

/// Runs `work` compiled for the widest instructions that the processor has and the limit allows.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    use pulp::x86::{V3, V4};
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit >= Avx512 as u8
        && let Some(simd) = V4::try_new()
    {
        return Simd::vectorize(simd, work);
    }
    if limit >= Avx2 as u8
        && let Some(simd) = V3::try_new()
    {
        return Simd::vectorize(simd, work);
    }
    Simd::vectorize(pulp::Scalar128b, work)
}

/// Runs `work` compiled for the widest instructions that the processor has.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    pulp::Arch::new().dispatch(work)
}

/// `a` `b` + `c`, rounded once where the instructions can.
#[inline(always)]
pub(crate) fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
    // SSE2 cannot, and to round once without instructions for it takes a call per element.
    if cfg!(target_arch = "x86_64") && S::F32_LANES < 8 {
        simd.add_f32s(simd.mul_f32s(a, b), c)
    } else {
        simd.mul_add_f32s(a, b, c)
    }
}
