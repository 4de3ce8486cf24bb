//! What stands between a defect in here and the engine.

use orbitkv_client::ClientError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

create_exception!(
    orbitkv._native,
    OrbitKVError,
    PyException,
    "Anything that makes a call impossible; the engine goes on without the cache."
);

/// Shared by a client and its handles: set by the first panic, and every later call is refused.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    broken: Arc<AtomicBool>,
}

impl Guard {
    /// Runs `call` with the GIL; for what only looks.
    pub(crate) fn look<T>(&self, call: impl FnOnce() -> Result<T, ClientError>) -> PyResult<T> {
        if self.broken.load(Ordering::Acquire) {
            return Err(OrbitKVError::new_err("the client is broken by an earlier internal error"));
        }
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => result.map_err(|e| OrbitKVError::new_err(e.to_string())),
            Err(panic) => {
                self.broken.store(true, Ordering::Release);
                Err(OrbitKVError::new_err(format!("internal error: {}", text_of(&*panic))))
            }
        }
    }

    /// Runs `call` without the GIL; for what sends, waits or takes long.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce() -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.look(call))
    }
}

/// Closes a client without the GIL, and keeps its panics.
pub(crate) fn drop_quietly(close: impl FnOnce() + Send) {
    let quiet = || drop(catch_unwind(AssertUnwindSafe(close)));
    // No interpreter to attach to: it is shutting down, and no thread of Python can wait for us.
    let mut quiet = Some(quiet);
    let done = Python::try_attach(|py| {
        if let Some(quiet) = quiet.take() {
            py.detach(quiet);
        }
    });
    if let (None, Some(quiet)) = (done, quiet) {
        quiet();
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
