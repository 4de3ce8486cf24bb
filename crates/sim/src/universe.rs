//! The block hashes that engines ask for: chains that share prefixes.

use crate::rng::{Rng, mix};
use orbitkv_core::BlockHash;

/// Chains of block hashes. Each begins like an earlier one and goes its own way from some depth on.
#[derive(Clone, Debug)]
pub(crate) struct Universe {
    chains: Vec<Vec<BlockHash>>,
}

/// The hash of that number.
pub(crate) fn block_hash(number: u64) -> BlockHash {
    let mut bytes = [0; 32];
    for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(number ^ (i as u64) << 56).to_le_bytes());
    }
    BlockHash(bytes)
}

impl Universe {
    pub(crate) fn new(rng: &mut Rng, chains: usize, length: usize) -> Self {
        let mut all: Vec<Vec<BlockHash>> = Vec::with_capacity(chains);
        let mut number = 0;
        for _ in 0..chains {
            let mut chain: Vec<BlockHash> = match rng.pick(&all).cloned() {
                Some(older) => older.into_iter().take(rng.index(length)).collect(),
                None => Vec::new(),
            };
            while chain.len() < length {
                number += 1;
                chain.push(block_hash(number));
            }
            all.push(chain);
        }
        Self { chains: all }
    }

    /// One of the chains.
    pub(crate) fn chain(&self, rng: &mut Rng) -> &[BlockHash] {
        rng.pick(&self.chains).map_or(&[], Vec::as_slice)
    }
}
