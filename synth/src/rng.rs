//! The generator of values.

/// splitmix64, with sums and products only, so that the values are the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let mut rng = Self(seed);
        Self(rng.next() ^ hash)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `lo..hi`.
    pub(crate) fn between(&mut self, lo: f32, hi: f32) -> f32 {
        lo + (hi - lo) * (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Bell-shaped with mean 0 and standard deviation 1: a sum of six uniforms.
    pub(crate) fn bell(&mut self) -> f32 {
        let mut sum = 0_u64;
        for _ in 0..3 {
            let bits = self.next();
            sum += (bits >> 32) + (bits & 0xffff_ffff);
        }
        ((sum as f64 / 4_294_967_296.0 - 3.0) * std::f64::consts::SQRT_2) as f32
    }
}
