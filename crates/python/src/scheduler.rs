//! The scheduler's side.

use crate::args::{hash, hashes, int, micros};
use crate::guard::{Guard, drop_quietly};
use crate::preparation::Preparation;
use crate::recovery::{Candidates, RecoveryDemand};
use crate::registration::Registration;
use orbitkv_client::{Demand, MissReason, QueryState};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;

pub(crate) const PENDING: u8 = 0;
pub(crate) const READY: u8 = 1;
pub(crate) const MISS: u8 = 2;
pub(crate) const PREPARED: u8 = 3;

fn state(state: QueryState) -> u8 {
    match state {
        QueryState::Pending => PENDING,
        QueryState::Ready => READY,
        QueryState::Miss => MISS,
    }
}

/// Owns queries and reservations of one engine instance.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct SchedulerClient {
    client: orbitkv_client::SchedulerClient,
    guard: Guard,
}

#[pymethods]
impl SchedulerClient {
    #[new]
    fn new(py: Python<'_>, registration: &Registration) -> PyResult<Self> {
        let guard = Guard::default();
        let registration = &registration.inner;
        let client = guard.run(py, || orbitkv_client::SchedulerClient::new(registration))?;
        Ok(Self { client, guard })
    }

    #[getter]
    fn active(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.client.active()))
    }

    #[getter]
    fn connected(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.client.connected()))
    }

    #[getter]
    fn boot(&self) -> PyResult<String> {
        self.guard.look(|| Ok(self.client.boot()))
    }

    #[getter]
    fn status(&self) -> PyResult<String> {
        self.guard.look(|| Ok(self.client.status()))
    }

    #[pyo3(signature = (
        hashes, *, group = 0, deadline_ms = 0, strict = false, wait_full_prefix = false, memory_only = false
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords of the Python call")]
    #[allow(clippy::fn_params_excessive_bools, reason = "keywords of the Python call")]
    fn query(
        &self,
        py: Python<'_>,
        hashes: &[u8],
        group: i64,
        deadline_ms: i64,
        strict: bool,
        wait_full_prefix: bool,
        memory_only: bool,
    ) -> PyResult<Query> {
        let (group, deadline_ms) = (int("group", group)?, int("deadline_ms", deadline_ms)?);
        let hashes = self::hashes("hashes", hashes)?;
        let demand = Demand { deadline_ms, strict, wait_full_prefix, memory_only };
        let query = self.guard.run(py, || self.client.demand(group, &hashes, demand))?;
        Ok(Query { query, guard: self.guard.clone() })
    }

    #[pyo3(signature = (hashes, *, group = 0))]
    fn prepare_prefix(&self, py: Python<'_>, hashes: &[u8], group: i64) -> PyResult<Preparation> {
        let (group, hashes) = (int("group", group)?, self::hashes("hashes", hashes)?);
        let preparation = self.guard.run(py, || self.client.prepare(group, &hashes))?;
        Ok(Preparation { preparation, guard: self.guard.clone() })
    }

    fn recovery(
        &self,
        py: Python<'_>,
        start_tokens: i64,
        end_tokens: i64,
        hashes: &[u8],
    ) -> PyResult<RecoveryDemand> {
        let (start, end) = (int("start_tokens", start_tokens)?, int("end_tokens", end_tokens)?);
        let hashes = self::hashes("hashes", hashes)?;
        let demand = self.guard.run(py, || self.client.recovery(start, end, &hashes))?;
        Ok(RecoveryDemand { demand })
    }

    fn candidates(&self, py: Python<'_>, start_tokens: i64, hashes: &[u8]) -> PyResult<Candidates> {
        let start_tokens = int("start_tokens", start_tokens)?;
        let hashes = self::hashes("hashes", hashes)?;
        let candidates = self.guard.run(py, || Ok(self.client.candidates(start_tokens, &hashes)))?;
        Ok(Candidates { candidates, guard: self.guard.clone() })
    }

    #[pyo3(signature = (demand, *, deadline_ms = 0))]
    fn read_recovery(&self, py: Python<'_>, demand: &RecoveryDemand, deadline_ms: i64) -> PyResult<Query> {
        let deadline_ms = int("deadline_ms", deadline_ms)?;
        let query = self.guard.run(py, || Ok(self.client.read_recovery(&demand.demand, deadline_ms)))?;
        Ok(Query { query, guard: self.guard.clone() })
    }

    fn prepare_recovery(
        &self,
        py: Python<'_>,
        start_tokens: i64,
        end_tokens: i64,
        hashes: &[u8],
    ) -> PyResult<Preparation> {
        let demand = self.recovery(py, start_tokens, end_tokens, hashes)?.demand;
        let preparation = self.guard.run(py, || Ok(self.client.prepare_recovery(&demand)))?;
        Ok(Preparation { preparation, guard: self.guard.clone() })
    }

    #[pyo3(signature = (hashes, *, group = 0))]
    fn warm_up(&self, py: Python<'_>, hashes: &[u8], group: i64) -> PyResult<bool> {
        let (group, hashes) = (int("group", group)?, self::hashes("hashes", hashes)?);
        self.guard.run(py, || self.client.warm_up(group, &hashes))
    }

    #[pyo3(signature = (hashes, *, parent, first_depth, group = 0))]
    fn reserve(
        &self,
        py: Python<'_>,
        hashes: &[u8],
        parent: Option<&[u8]>,
        first_depth: i64,
        group: i64,
    ) -> PyResult<Reservation> {
        let (group, first_depth) = (int("group", group)?, int("first_depth", first_depth)?);
        let parent = parent.map(|bytes| hash("parent", bytes)).transpose()?;
        let hashes = self::hashes("hashes", hashes)?;
        let reservation = self.guard.run(py, || self.client.reserve(group, parent, first_depth, &hashes))?;
        Ok(Reservation { reservation, guard: self.guard.clone() })
    }

    fn reset(&self, py: Python<'_>) -> PyResult<Reset> {
        let reset = self.guard.run(py, || self.client.reset())?;
        Ok(Reset { reset, guard: self.guard.clone() })
    }

    fn stats(&self) -> PyResult<HashMap<&'static str, u64>> {
        self.guard.look(|| Ok(self.client.stats().into_iter().collect()))
    }

    fn close(&self) {
        // Also of a broken client, and in whatever state.
        drop_quietly(|| self.client.close());
    }
}

impl Drop for SchedulerClient {
    fn drop(&mut self) {
        drop_quietly(|| self.client.close());
    }
}

/// A foreground demand.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Query {
    pub(crate) query: orbitkv_client::Query,
    pub(crate) guard: Guard,
}

#[pymethods]
impl Query {
    fn poll(&self) -> PyResult<u8> {
        self.guard.look(|| Ok(state(self.query.poll())))
    }

    fn wait(&self, py: Python<'_>, timeout_us: i64) -> PyResult<u8> {
        self.guard.run(py, || Ok(state(self.query.wait(micros(timeout_us)))))
    }

    #[getter]
    fn pages(&self) -> PyResult<usize> {
        self.guard.look(|| Ok(self.query.pages()))
    }

    #[getter]
    fn sections(&self) -> PyResult<Vec<(u16, u32, u32)>> {
        self.guard.look(|| {
            let sections = self.query.sections().iter();
            Ok(sections.map(|s| (s.group, s.first_page, s.first_page + s.pages)).collect())
        })
    }

    #[getter]
    fn ids(&self) -> PyResult<(u64, u64, u32)> {
        self.guard.look(|| Ok(self.query.ids()))
    }

    #[getter]
    fn miss_reason(&self) -> PyResult<&'static str> {
        self.guard.look(|| Ok(self.query.miss_reason().map_or("", MissReason::name)))
    }

    fn restore<'py>(&self, py: Python<'py>, first: i64, count: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (first, count) = (int("first", first)?, int("count", count)?);
        let ticket = self.guard.run(py, || Ok(self.query.restore(first, count)?.encode()))?;
        Ok(PyBytes::new(py, &ticket))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.guard.run(py, || {
            self.query.release();
            Ok(())
        })
    }
}

/// Room to save pages into.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Reservation {
    reservation: orbitkv_client::Reservation,
    guard: Guard,
}

#[pymethods]
impl Reservation {
    fn poll(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.reservation.poll()))
    }

    fn statuses(&self) -> PyResult<Vec<u32>> {
        // Not `u8`: that would reach Python as bytes.
        self.guard.look(|| Ok(self.reservation.statuses().iter().map(|status| *status as u32).collect()))
    }

    fn ticket<'py>(&self, py: Python<'py>, indices: Vec<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let indices: Vec<usize> = indices.iter().map(|i| int("index", *i)).collect::<PyResult<_>>()?;
        let ticket = self.guard.run(py, || Ok(self.reservation.ticket(&indices)?.encode()))?;
        Ok(PyBytes::new(py, &ticket))
    }

    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.guard.run(py, || {
            self.reservation.abandon();
            Ok(())
        })
    }
}

/// Whether the namespace has been forgotten.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Reset {
    reset: orbitkv_client::Reset,
    guard: Guard,
}

#[pymethods]
impl Reset {
    fn poll(&self) -> PyResult<bool> {
        self.guard.look(|| Ok(self.reset.poll()))
    }

    fn wait(&self, py: Python<'_>, timeout_us: i64) -> PyResult<bool> {
        self.guard.run(py, || Ok(self.reset.wait(micros(timeout_us))))
    }
}
