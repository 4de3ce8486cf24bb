//! `orbitkv._native`: the client, for Python. `python/orbitkv/_native.pyi` describes it.
//!
//! Thin on purpose: arguments are checked and converted here, everything else is `orbitkv-client`.
//! Whatever may wait runs without the GIL. A panic is caught at each entry and becomes `OrbitKVError`.
#![deny(unsafe_code)]
// Lists come from pyo3 as owned vectors.
#![allow(clippy::needless_pass_by_value)]

mod args;
mod guard;
mod layout;
mod preparation;
mod recovery;
mod registration;
mod scheduler;
mod worker;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Native client of the `OrbitKV` cache manager.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::guard::OrbitKVError;
    #[pymodule_export]
    use crate::layout::{Layout, gather_block, scatter_block};
    #[pymodule_export]
    use crate::preparation::Preparation;
    #[pymodule_export]
    use crate::recovery::{Candidates, RecoveryDemand, common_boundaries};
    #[pymodule_export]
    use crate::registration::Registration;
    #[pymodule_export]
    use crate::scheduler::{Query, Reservation, Reset, SchedulerClient};
    #[pymodule_export]
    use crate::worker::{Load, Pinned, Save, WorkerClient};
    #[pymodule_export]
    use crate::{blake3_hex, pad_hashes};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        use orbitkv_client::GrantStatus;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("HASH_BYTES", size_of::<orbitkv_client::Hash>())?;
        module.add("PENDING", crate::scheduler::PENDING)?;
        module.add("READY", crate::scheduler::READY)?;
        module.add("MISS", crate::scheduler::MISS)?;
        module.add("PREPARED", crate::scheduler::PREPARED)?;
        module.add("LAYER_COMPLETE", crate::worker::LAYER_COMPLETE)?;
        module.add("LAYER_ORDERED", crate::worker::LAYER_ORDERED)?;
        module.add("LAYER_FAILED", crate::worker::LAYER_FAILED)?;
        module.add("LAYER_TIMED_OUT", crate::worker::LAYER_TIMED_OUT)?;
        module.add("GRANT_SLOTS", GrantStatus::Slots as u8)?;
        module.add("GRANT_EXISTS", GrantStatus::Exists as u8)?;
        module.add("GRANT_BUSY", GrantStatus::Busy as u8)?;
        module.add("GRANT_REFUSED", GrantStatus::Refused as u8)
    }
}

/// Joins block hashes of 1 to 32 bytes each into one blob of 32 bytes each.
#[pyfunction]
fn pad_hashes<'py>(py: Python<'py>, hashes: Vec<Bound<'py, PyBytes>>) -> PyResult<Bound<'py, PyBytes>> {
    let mut blob = vec![0; hashes.len() * args::HASH_BYTES];
    for (i, (hash, padded)) in hashes.iter().zip(blob.chunks_exact_mut(args::HASH_BYTES)).enumerate() {
        let bytes = hash.as_bytes();
        let place = padded.get_mut(..bytes.len()).filter(|place| !place.is_empty());
        let Some(place) = place else {
            let text = format!("hash {i} has {} bytes; it must have 1 to {}", bytes.len(), args::HASH_BYTES);
            return Err(OrbitKVError::new_err(text));
        };
        place.copy_from_slice(bytes);
    }
    Ok(PyBytes::new(py, &blob))
}

/// BLAKE3 of `data`, 64 hex digits.
#[pyfunction]
fn blake3_hex(py: Python<'_>, data: &[u8]) -> String {
    py.detach(|| blake3::hash(data).to_hex().to_string())
}

use guard::OrbitKVError;
