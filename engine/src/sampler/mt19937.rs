//! The Mersenne twister MT19937 (C++ has it as `std::mt19937`), and a real number drawn as C++ draws it.

use rand_mt::Mt;

/// The generator.
#[derive(Clone)]
pub struct Mt19937(Mt);

impl Mt19937 {
    /// Starts from `seed`.
    pub fn new(seed: u32) -> Self {
        Self(Mt::new(seed))
    }

    /// A number of [0, 1) from two draws, the first being the low half: what
    /// `std::uniform_real_distribution<double>` gives with libstdc++.
    pub fn next_f64(&mut self) -> f64 {
        let low = f64::from(self.0.next_u32());
        let high = f64::from(self.0.next_u32());
        let unit = (low + high * 2f64.powi(32)) / 2f64.powi(64);
        unit.min(1f64.next_down())
    }
}

#[cfg(test)]
mod tests {
    use super::Mt19937;

    /// The values that the C++ standard demands, [rand.predef]: the ten-thousandth draw is the high half of a number.
    #[test]
    fn ten_thousandth_value() {
        let mut mt = Mt19937::new(5489);
        let last = (0..5_000).map(|_| mt.next_f64()).last().unwrap();
        assert_eq!((last * 2f64.powi(32)) as u32, 4_123_659_995);
    }

    #[test]
    fn reals_lie_in_the_unit_interval() {
        let mut mt = Mt19937::new(1);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&mt.next_f64())));
    }
}
