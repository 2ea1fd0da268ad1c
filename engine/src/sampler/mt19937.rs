//! The Mersenne twister MT19937, and a real number drawn as C++ draws it.
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1),
//! 1998, with the initialisation of 2002; C++ has it as `std::mt19937`.

const N: usize = 624;
const M: usize = 397;

/// The generator.
#[derive(Clone)]
pub struct Mt19937 {
    state: Vec<u32>,
    next: usize,
}

impl Mt19937 {
    /// Starts from `seed`.
    pub fn new(seed: u32) -> Self {
        let mut state = vec![seed; N];
        for i in 1..N {
            let last = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7FFF_FFFF);
            let odd = if y & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// A number of [0, 1) from two draws, the first being the low half: what
    /// `std::uniform_real_distribution<double>` gives with libstdc++.
    pub fn next_f64(&mut self) -> f64 {
        let low = f64::from(self.next_u32());
        let high = f64::from(self.next_u32());
        let unit = (low + high * 2f64.powi(32)) / 2f64.powi(64);
        unit.min(1f64.next_down())
    }
}

#[cfg(test)]
mod tests {
    use super::Mt19937;

    /// The value that the C++ standard demands, [rand.predef].
    #[test]
    fn ten_thousandth_value() {
        let mut mt = Mt19937::new(5489);
        let last = (0..10_000).map(|_| mt.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn reals_lie_in_the_unit_interval() {
        let mut mt = Mt19937::new(1);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&mt.next_f64())));
    }
}
