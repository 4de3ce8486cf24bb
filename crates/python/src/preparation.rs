//! A read ahead for one request.

use crate::args::int;
use crate::guard::Guard;
use crate::scheduler::{MISS, PENDING, PREPARED, Query};
use orbitkv_client::{MissReason, PreparationState};
use pyo3::prelude::*;

/// Pages that are read ahead until a request claims them.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Preparation {
    pub(crate) preparation: orbitkv_client::Preparation,
    pub(crate) guard: Guard,
}

#[pymethods]
impl Preparation {
    fn poll(&self) -> PyResult<u8> {
        self.guard.look(|| {
            Ok(match self.preparation.poll() {
                PreparationState::Pending => PENDING,
                PreparationState::Prepared => PREPARED,
                PreparationState::Miss => MISS,
            })
        })
    }

    #[getter]
    fn pages(&self) -> PyResult<usize> {
        self.guard.look(|| Ok(self.preparation.pages()))
    }

    #[getter]
    fn ids(&self) -> PyResult<(u64, u64, u32)> {
        self.guard.look(|| Ok(self.preparation.ids()))
    }

    #[getter]
    fn miss_reason(&self) -> PyResult<&'static str> {
        self.guard.look(|| Ok(self.preparation.miss_reason().map_or("", MissReason::name)))
    }

    #[pyo3(signature = (*, deadline_ms = 0))]
    fn claim(&self, py: Python<'_>, deadline_ms: i64) -> PyResult<Query> {
        let deadline_ms = int("deadline_ms", deadline_ms)?;
        let query = self.guard.run(py, || self.preparation.claim(deadline_ms))?;
        Ok(Query { query, guard: self.guard.clone() })
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.guard.run(py, || {
            self.preparation.cancel();
            Ok(())
        })
    }
}
