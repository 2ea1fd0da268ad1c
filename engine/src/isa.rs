//! Loops that are compiled for several instruction sets, of which the best is chosen at run time.

use std::sync::OnceLock;

/// An instruction set.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Isa {
    /// AVX-512F.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// What every x86-64, or another processor, has.
    Baseline,
}

/// The best that this processor has.
pub(crate) fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    })
}

/// What this processor can run best of three, of which the last may replace another.
macro_rules! by_isa {
    ($avx512:expr, $avx2:expr, $baseline:expr) => {
        #[allow(unused_unsafe, reason = "the loop for every processor may replace another")]
        match $crate::isa::isa() {
            // SAFETY: `isa` saw the features on this processor.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx512 => unsafe { $avx512 },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2 => unsafe { $avx2 },
            _ => $baseline,
        }
    };
}

pub(crate) use by_isa;

/// A loop that gains from wide registers. `run` is `#[inline(always)]`, so that it is compiled for each instruction set.
pub trait Vectorised {
    /// What it gives.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

/// Runs a loop as the best that this processor can.
pub fn vectorised<V: Vectorised>(v: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx2,fma")]
    fn avx512<V: Vectorised>(v: V) -> V::Output {
        v.run()
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2<V: Vectorised>(v: V) -> V::Output {
        v.run()
    }
    by_isa!(avx512(v), avx2(v), v.run())
}
