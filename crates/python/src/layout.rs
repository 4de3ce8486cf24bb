//! KV memory. The one file here with `unsafe`: it takes addresses on the caller's word.

use crate::guard::{Guard, OrbitKVError};
use orbitkv_copy::{KvLayout, KvRegion};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// KV memory of one worker: one region a layer.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Layout {
    pub(crate) inner: Arc<KvLayout>,
}

#[pymethods]
impl Layout {
    #[new]
    #[allow(unsafe_code)]
    fn new(regions: Vec<(usize, usize, usize, usize)>) -> PyResult<Self> {
        let region = |(base, block_stride_bytes, block_bytes, num_blocks)| KvRegion {
            base,
            block_stride_bytes,
            block_bytes,
            num_blocks,
        };
        // SAFETY: not ours to check. The class's documentation asks the caller to name memory that it owns
        // and that outlives the worker client, in which no two blocks share a byte; the adapter takes
        // addresses, strides and shapes from the engine's own tensors and holds these.
        let layout = unsafe { KvLayout::new(regions.into_iter().map(region).collect()) };
        let inner = Arc::new(layout.map_err(|e| OrbitKVError::new_err(e.to_string()))?);
        Ok(Self { inner })
    }

    #[getter]
    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    #[getter]
    fn num_layers(&self) -> usize {
        self.inner.regions().len()
    }
}

/// Payload of one block through the copy engine's own address arithmetic.
#[pyfunction]
#[pyo3(signature = (layout, block, *, device = "cpu"))]
pub(crate) fn gather_block<'py>(
    py: Python<'py>,
    layout: &Layout,
    block: usize,
    device: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let layout = &layout.inner;
    let payload =
        Guard::default().run(py, || orbitkv_client::gather_block(&device.parse()?, layout, block))?;
    Ok(PyBytes::new(py, &payload))
}

/// The reverse of `gather_block`. Only for scratch memory.
#[pyfunction]
#[pyo3(signature = (layout, block, payload, *, device = "cpu"))]
pub(crate) fn scatter_block(
    py: Python<'_>,
    layout: &Layout,
    block: usize,
    payload: &[u8],
    device: &str,
) -> PyResult<()> {
    let layout = &layout.inner;
    Guard::default().run(py, || orbitkv_client::scatter_block(&device.parse()?, layout, block, payload))
}
