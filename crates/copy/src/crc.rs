//! The checksum of pages. The library behind it is named here and nowhere else.

use crc_fast::{CrcAlgorithm, Digest};
use orbitkv_shm::{Region, ShmError};

use crate::Fragment;

/// CRC-64/NVME (reflected, polynomial 0xAD93D23594C93659, initial and final xor all ones).
const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of `bytes`.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(ALGORITHM, bytes)
}

/// CRC-64/NVME of bytes that come piece by piece.
#[derive(Debug)]
pub struct Crc64(Digest);

impl Crc64 {
    /// The checksum of nothing yet.
    #[must_use]
    pub fn new() -> Crc64 {
        Crc64(Digest::new(ALGORITHM))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything added so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Crc64 {
        Crc64::new()
    }
}

/// CRC-64/NVME of `len` bytes at `offset` of shared memory.
///
/// Call it while the page's custody forbids writes. A process that writes nevertheless makes the result worthless,
/// which is what a checksum is for: it then matches nothing.
pub fn page_crc64(memory: &Region, offset: usize, len: usize) -> Result<u64, ShmError> {
    let start = memory.range_ptr(offset, len)?;
    // SAFETY: `start` is valid for reads of `len` bytes (checked) while `memory` is borrowed. The slice does not leave
    // this function, and the checksum only loads from it: a writer that breaks custody changes the sum, nothing else.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    Ok(crc64(bytes))
}

/// CRC-64/NVME over the sources of `fragments`, in order. Over one page's fragments, layer by layer, it equals the
/// checksum of the page's payload.
///
/// # Safety
///
/// The promise of [`Fragment::new`] stands for each of them, and their sources are memory that this process can read
/// (not memory of a device).
#[must_use]
pub unsafe fn crc64_sources<'a>(fragments: impl IntoIterator<Item = &'a Fragment>) -> u64 {
    let mut crc = Crc64::new();
    for fragment in fragments {
        // SAFETY: valid for reads and not written meanwhile, by the caller's promise.
        crc.update(unsafe { std::slice::from_raw_parts(fragment.src(), fragment.bytes()) });
    }
    crc.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_shm::{PAGE_BYTES, Segment};
    use proptest::prelude::*;

    /// The check value of the CRC catalogues, and of NVMe.
    const CHECK: u64 = 0xAE8B_1486_0A79_9888;

    /// The definition, bit by bit.
    fn bitwise(bytes: &[u8]) -> u64 {
        let reflected_polynomial = 0xAD93_D235_94C9_3659_u64.reverse_bits();
        !bytes.iter().fold(u64::MAX, |crc, byte| {
            (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ (reflected_polynomial * (crc & 1)))
        })
    }

    #[test]
    fn the_check_value_holds() {
        assert_eq!(crc64(b"123456789"), CHECK);
        assert_eq!(bitwise(b"123456789"), CHECK);
        assert_eq!(crc64(b""), 0);
    }

    #[test]
    fn shared_memory_sums_like_private_memory() {
        let segment = Segment::create("crc", PAGE_BYTES).unwrap();
        segment.write_at(100, b"123456789").unwrap();
        assert_eq!(page_crc64(&segment, 100, 9).unwrap(), CHECK);
        assert_ne!(page_crc64(&segment, 101, 9).unwrap(), CHECK);
        assert!(page_crc64(&segment, PAGE_BYTES - 8, 9).is_err());
    }

    proptest! {
        #[test]
        fn pieces_sum_to_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut in 0..600_usize) {
            let cut = cut.min(bytes.len());
            let mut crc = Crc64::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            prop_assert_eq!(crc.value(), crc64(&bytes));
            prop_assert_eq!(crc64(&bytes), bitwise(&bytes));
        }

        #[test]
        fn one_flipped_bit_changes_the_sum(mut bytes in proptest::collection::vec(any::<u8>(), 1..600), at: usize) {
            let before = crc64(&bytes);
            let bit = at % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(crc64(&bytes), before);
        }
    }
}
