//! Recoveries: what several cache groups need at a token boundary.

use crate::args::{hashes, int, micros};
use crate::guard::Guard;
use orbitkv_client::GroupRange;
use pyo3::prelude::*;

/// Ranges as Python has them: group, first page, page after the last one.
type Range = (i64, i64, i64);

/// All that an engine needs to go on at a token boundary.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct RecoveryDemand {
    pub(crate) demand: orbitkv_client::RecoveryDemand,
}

#[pymethods]
impl RecoveryDemand {
    #[new]
    #[pyo3(signature = (*, start_tokens, end_tokens, hashes, ranges))]
    fn new(start_tokens: i64, end_tokens: i64, hashes: &[u8], ranges: Vec<Range>) -> PyResult<Self> {
        let range = |(group, first_page, end_page): &Range| -> PyResult<GroupRange> {
            Ok(GroupRange {
                group: int("group", *group)?,
                first_page: int("first page", *first_page)?,
                end_page: int("end page", *end_page)?,
            })
        };
        let demand = orbitkv_client::RecoveryDemand {
            start_tokens: int("start_tokens", start_tokens)?,
            end_tokens: int("end_tokens", end_tokens)?,
            ranges: ranges.iter().map(range).collect::<PyResult<_>>()?,
            hashes: self::hashes("hashes", hashes)?,
        };
        Ok(Self { demand })
    }

    #[getter]
    fn start_tokens(&self) -> u32 {
        self.demand.start_tokens
    }

    #[getter]
    fn end_tokens(&self) -> u32 {
        self.demand.end_tokens
    }

    #[getter]
    fn ranges(&self) -> Vec<(u16, u32, u32)> {
        self.demand.ranges.iter().map(|range| (range.group, range.first_page, range.end_page)).collect()
    }
}

/// Where a recovery could end.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Candidates {
    pub(crate) candidates: orbitkv_client::Candidates,
    pub(crate) guard: Guard,
}

#[pymethods]
impl Candidates {
    fn poll(&self) -> PyResult<Option<Vec<u32>>> {
        self.guard.look(|| Ok(self.candidates.poll().map(<[u32]>::to_vec)))
    }

    fn wait(&self, py: Python<'_>, timeout_us: i64) -> PyResult<Option<Vec<u32>>> {
        self.guard.run(py, || Ok(self.candidates.wait(micros(timeout_us)).map(<[u32]>::to_vec)))
    }
}

/// The boundaries that are in every one of several ascending sets.
#[pyfunction]
pub(crate) fn common_boundaries(sets: Vec<Vec<u32>>) -> Vec<u32> {
    orbitkv_client::common_boundaries(sets.iter().map(Vec::as_slice))
}
