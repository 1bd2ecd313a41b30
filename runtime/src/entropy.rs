//! Randomness as a trait, so that a seed reproduces a simulation.

use std::fmt;
use std::sync::Mutex;

use sha2::{Digest, Sha256};

/// A source of random bytes. Passed as `Arc<dyn Entropy>`.
pub trait Entropy: Send + Sync + fmt::Debug + 'static {
    /// Fills the buffer with random bytes.
    fn fill(&self, buffer: &mut [u8]);

    /// A uniform 64-bit number.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A uniform number below `bound`; 0 for bound 0. The bias is below 2⁻⁶⁴ × bound.
    fn below(&self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a 128-bit number fits in 64 bits")
    }

    /// 16 random bytes in hex: a unique name.
    fn unique_hex(&self) -> String {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        hex::encode(bytes)
    }
}

/// The generator of the operating system; suitable for keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("a process without randomness cannot make keys and must not run");
    }
}

/// The same bytes for the same seed. For simulations and tests; never for keys.
#[derive(Debug)]
pub struct SeededEntropy {
    seed: u64,
    drawn: Mutex<u64>,
}

impl SeededEntropy {
    /// A generator at the start of the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: Mutex::new(0) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        // Each draw updates the counter at once, so a poisoned lock has consistent content.
        let mut drawn = self.drawn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for chunk in buffer.chunks_mut(32) {
            let block = Sha256::new()
                .chain_update(b"comity-seeded-entropy")
                .chain_update(self.seed.to_le_bytes())
                .chain_update(drawn.to_le_bytes())
                .finalize();
            *drawn = drawn.wrapping_add(1);
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (a, b, c) = (SeededEntropy::new(7), SeededEntropy::new(7), SeededEntropy::new(8));
        let draw = |e: &SeededEntropy| (0..8).map(|_| e.next_u64()).collect::<Vec<_>>();
        let first = draw(&a);
        assert_eq!(first, draw(&b));
        assert_ne!(first, draw(&c));
        assert_ne!(first, draw(&a));
    }

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let entropy = SeededEntropy::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[usize::try_from(entropy.below(5)).unwrap_or(usize::MAX)] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(entropy.below(0), 0);
        assert_ne!(SystemEntropy.unique_hex(), SystemEntropy.unique_hex());
    }
}
