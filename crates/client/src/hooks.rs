//! Hold points and fault switches; all of them answer "no" in a build without `test-hooks`.

use crate::ClientError;

/// Before the first byte of a restore moves.
pub(crate) const COPY_RESTORE: &str = "copy_restore";
/// Before the first byte of a save moves.
pub(crate) const COPY_SAVE: &str = "copy_save";
/// Before a checksum is compared beside its copy.
pub(crate) const COMPARE: &str = "compare";
/// Before commits are sent.
pub(crate) const COMMIT: &str = "commit";
/// `skip`: report restores done without copying; `zero`: copy zeros.
pub(crate) const RESTORE_FAULT: &str = "restore_fault";
/// `N`: report the N-th next restored page as failed.
pub(crate) const FAIL_PAGE: &str = "fail_page";
/// `PATH`: the CUDA driver is loaded from there.
pub(crate) const CUDA_DRIVER: &str = "cuda_driver";

#[cfg(feature = "test-hooks")]
mod real {
    pub(crate) fn start() -> std::io::Result<()> {
        orbitkv_holds::start_from_env().map(|_| ())
    }
    pub(crate) use orbitkv_holds::{count_down, is_held, note_reached, switch};
}

#[cfg(not(feature = "test-hooks"))]
mod real {
    #[allow(clippy::unnecessary_wraps)] // The other build can fail.
    pub(crate) fn start() -> std::io::Result<()> {
        Ok(())
    }
    pub(crate) fn is_held(_name: &str) -> bool {
        false
    }
    pub(crate) fn note_reached(_name: &str) {}
    pub(crate) fn switch(_key: &str) -> Option<String> {
        None
    }
    pub(crate) fn count_down(_key: &str) -> bool {
        false
    }
}

pub(crate) use real::{count_down, is_held, note_reached, switch};

/// Starts the listener of a test build.
pub(crate) fn start() -> Result<(), ClientError> {
    real::start().map_err(ClientError::system("cannot listen in ORBITKV_TEST_DIR"))
}
