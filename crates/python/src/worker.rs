//! The worker's side.

use crate::args::{blocks, int, millis};
use crate::guard::{Guard, drop_quietly};
use crate::layout::Layout;
use crate::registration::Registration;
use orbitkv_client::{Device, LayerOrder, SelfTest, WorkerConfig};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Copies pages between KV memory and the pool.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct WorkerClient {
    client: orbitkv_client::WorkerClient,
    guard: Guard,
}

#[pymethods]
impl WorkerClient {
    #[new]
    #[pyo3(signature = (
        registration, *, rank, layout, scratch, layout_probe_passed, copy_threads = 2,
        verify_restore = "sample:16", more_layouts = HashMap::new(), device = "cpu",
        copy_method = "auto"
    ))]
    #[allow(clippy::too_many_arguments)] // Keyword arguments of the Python side.
    fn new(
        py: Python<'_>,
        registration: &Registration,
        rank: i64,
        layout: &Layout,
        scratch: &Layout,
        layout_probe_passed: bool,
        copy_threads: i64,
        verify_restore: &str,
        more_layouts: HashMap<u16, Bound<'_, Layout>>,
        device: &str,
        copy_method: &str,
    ) -> PyResult<Self> {
        let guard = Guard::default();
        let (rank, copy_threads) = (int("rank", rank)?, int("copy_threads", copy_threads)?);
        let (registration, layout) = (registration.inner.clone(), Arc::clone(&layout.inner));
        let scratch = Arc::clone(&scratch.inner);
        let more_layouts =
            more_layouts.iter().map(|(group, l)| (*group, Arc::clone(&l.get().inner))).collect();
        let client = guard.run(py, || {
            orbitkv_client::WorkerClient::new(WorkerConfig {
                registration,
                rank,
                device: device.parse::<Device>()?.copied_by(copy_method)?,
                layout,
                more_layouts,
                scratch,
                layout_probe_passed,
                copy_threads,
                verify_restore: verify_restore.parse()?,
            })
        })?;
        Ok(Self { client, guard })
    }

    #[getter]
    fn connected(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.client.connected()))
    }

    #[getter]
    fn self_test(&self) -> PyResult<String> {
        self.guard.look(|| {
            Ok(match self.client.self_test() {
                SelfTest::Pending => "pending".to_owned(),
                SelfTest::Passed => "passed".to_owned(),
                SelfTest::Failed(text) => format!("failed: {text}"),
            })
        })
    }

    #[getter]
    fn method(&self) -> PyResult<String> {
        self.guard.look(|| Ok(self.client.method()))
    }

    #[getter]
    fn trouble(&self) -> PyResult<String> {
        self.guard.look(|| Ok(self.client.trouble().unwrap_or_default()))
    }

    #[pyo3(signature = (ticket, blocks, *, stream = None))]
    fn restore(
        &self,
        py: Python<'_>,
        ticket: &[u8],
        blocks: Vec<i64>,
        stream: Option<usize>,
    ) -> PyResult<Load> {
        let blocks = self::blocks(&blocks)?;
        let load = self.guard.run(py, || match stream {
            Some(stream) => self.client.restore_after(stream, ticket, &blocks),
            None => self.client.restore(ticket, &blocks),
        })?;
        Ok(Load { load, guard: self.guard.clone() })
    }

    fn pin(&self, py: Python<'_>, ticket: &[u8]) -> PyResult<Pinned> {
        let pinned = self.guard.run(py, || self.client.pin(ticket))?;
        Ok(Pinned { pinned, guard: self.guard.clone() })
    }

    #[pyo3(signature = (ticket, blocks, *, stream = None))]
    fn save(&self, py: Python<'_>, ticket: &[u8], blocks: Vec<i64>, stream: Option<usize>) -> PyResult<Save> {
        let blocks = self::blocks(&blocks)?;
        let save = self.guard.run(py, || match stream {
            Some(stream) => self.client.save_after(stream, ticket, &blocks),
            None => self.client.save(ticket, &blocks),
        })?;
        Ok(Save { save, guard: self.guard.clone() })
    }

    fn fence(&self, py: Python<'_>, blocks: Vec<i64>, timeout_ms: i64) -> PyResult<usize> {
        let blocks = self::blocks(&blocks)?;
        self.guard.run(py, || Ok(self.client.fence(&blocks, millis(timeout_ms))))
    }

    fn stats(&self) -> PyResult<HashMap<&'static str, u64>> {
        self.guard.look(|| Ok(self.client.stats().into_iter().collect()))
    }

    fn close(&self) -> bool {
        // Also of a broken client, and in whatever state.
        let mut ended = false;
        drop_quietly(|| ended = self.client.close());
        ended
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        drop_quietly(|| {
            self.client.close();
        });
    }
}

/// Pages that can be restored.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Pinned {
    pinned: orbitkv_client::Pinned,
    guard: Guard,
}

#[pymethods]
impl Pinned {
    fn poll(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.pinned.poll()))
    }

    #[getter]
    fn pages(&self) -> PyResult<usize> {
        self.guard.look(|| Ok(self.pinned.pages()))
    }

    #[pyo3(signature = (pages, blocks, *, stream = None))]
    fn restore(
        &self,
        py: Python<'_>,
        pages: Vec<usize>,
        blocks: Vec<i64>,
        stream: Option<usize>,
    ) -> PyResult<Load> {
        let blocks = self::blocks(&blocks)?;
        let load = self.guard.run(py, || match stream {
            Some(stream) => self.pinned.restore_after(stream, &pages, &blocks),
            None => self.pinned.restore(&pages, &blocks),
        })?;
        Ok(Load { load, guard: self.guard.clone() })
    }

    fn release(&self) -> PyResult<()> {
        self.guard.look(|| {
            self.pinned.release();
            Ok(())
        })
    }
}

/// Answers of `Load.order_layer`.
pub(crate) const LAYER_COMPLETE: u8 = 0;
pub(crate) const LAYER_ORDERED: u8 = 1;
pub(crate) const LAYER_FAILED: u8 = 2;
pub(crate) const LAYER_TIMED_OUT: u8 = 3;

/// A restore under way.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Load {
    load: orbitkv_client::Load,
    guard: Guard,
}

#[pymethods]
impl Load {
    fn poll(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.load.poll()))
    }

    fn wait_layer(&self, py: Python<'_>, layer: i64, timeout_ms: i64) -> PyResult<bool> {
        let layer = int("layer", layer)?;
        self.guard.run(py, || Ok(self.load.wait_layer(layer, millis(timeout_ms))))
    }

    fn order_layer(&self, py: Python<'_>, layer: i64, stream: usize, timeout_ms: i64) -> PyResult<u8> {
        let layer = int("layer", layer)?;
        self.guard.run(py, || {
            Ok(match self.load.order_layer(layer, stream, millis(timeout_ms))? {
                LayerOrder::Complete => LAYER_COMPLETE,
                LayerOrder::Ordered => LAYER_ORDERED,
                LayerOrder::Failed => LAYER_FAILED,
                LayerOrder::TimedOut => LAYER_TIMED_OUT,
            })
        })
    }

    fn wait_checked(&self, py: Python<'_>, timeout_ms: i64) -> PyResult<bool> {
        self.guard.run(py, || Ok(self.load.wait_checked(millis(timeout_ms))))
    }

    fn wait(&self, py: Python<'_>, timeout_ms: i64) -> PyResult<bool> {
        self.guard.run(py, || Ok(self.load.wait(millis(timeout_ms))))
    }

    fn abort(&self, py: Python<'_>, timeout_ms: i64) -> PyResult<bool> {
        self.guard.run(py, || Ok(self.load.abort(millis(timeout_ms))))
    }

    fn failed_blocks(&self) -> PyResult<Vec<u32>> {
        self.guard.look(|| Ok(self.load.failed_blocks()))
    }
}

/// A save under way.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Save {
    save: orbitkv_client::Save,
    guard: Guard,
}

#[pymethods]
impl Save {
    fn poll(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.save.poll()))
    }

    fn committed(&self) -> PyResult<usize> {
        self.guard.look(|| Ok(self.save.committed()))
    }
}
