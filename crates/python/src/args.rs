//! Python values into the client's.

use crate::guard::OrbitKVError;
use orbitkv_client::Hash;
use pyo3::prelude::*;
use std::time::Duration;

pub(crate) const HASH_BYTES: usize = size_of::<Hash>();

/// Splits a blob into hashes.
pub(crate) fn hashes(name: &str, blob: &[u8]) -> PyResult<Vec<Hash>> {
    let (hashes, rest) = blob.as_chunks::<HASH_BYTES>();
    if rest.is_empty() {
        return Ok(hashes.to_vec());
    }
    let text = format!("{name} has {} bytes; it must be a multiple of {HASH_BYTES}", blob.len());
    Err(OrbitKVError::new_err(text))
}

/// One hash.
pub(crate) fn hash(name: &str, bytes: &[u8]) -> PyResult<Hash> {
    Hash::try_from(bytes).map_err(|_| {
        OrbitKVError::new_err(format!("{name} has {} bytes; it must have {HASH_BYTES}", bytes.len()))
    })
}

/// An integer of a narrower type.
pub(crate) fn int<T: TryFrom<i64>>(name: &str, value: i64) -> PyResult<T> {
    T::try_from(value).map_err(|_| {
        let bits = size_of::<T>() * 8;
        OrbitKVError::new_err(format!("{name} is {value}; it must be 0 or more and fit {bits} bits"))
    })
}

/// Block numbers.
pub(crate) fn blocks(values: &[i64]) -> PyResult<Vec<u32>> {
    values.iter().map(|value| int("block", *value)).collect()
}

/// A bound for a wait; negative is none at all.
pub(crate) fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

/// As above.
pub(crate) fn micros(value: i64) -> Duration {
    Duration::from_micros(u64::try_from(value).unwrap_or(0))
}
