//! The hold point `query_reply`: while a test holds it, answers to queries wait here in order.

use crate::waker::Waker;
use orbitkv_core::{OperationId, OperationOutcome, Revision, SessionId};
use std::collections::VecDeque;

const POINT: &str = "query_reply";

pub(crate) type Answer = (SessionId, OperationId, Revision, OperationOutcome);

/// Answers that are held back.
#[derive(Debug)]
pub(crate) struct Parked(VecDeque<Answer>);

impl Parked {
    /// Wakes the core thread at every release.
    pub(crate) fn new(waker: Waker) -> Self {
        if let Err(error) = orbitkv_holds::start_from_env() {
            tracing::warn!(%error, "hold points cannot be reached");
        }
        if !orbitkv_holds::on_release(POINT, move || waker.wake()) {
            tracing::warn!("too many callbacks: held answers leave with the next answer only");
        }
        Self(VecDeque::new())
    }

    /// Takes one answer in and returns those that may be sent now.
    pub(crate) fn park(&mut self, answer: Answer) -> VecDeque<Answer> {
        self.0.push_back(answer);
        if orbitkv_holds::is_held(POINT) {
            orbitkv_holds::note_reached(POINT);
        }
        self.take_released()
    }

    /// All of them, unless the point is held.
    pub(crate) fn take_released(&mut self) -> VecDeque<Answer> {
        if orbitkv_holds::is_held(POINT) { VecDeque::new() } else { std::mem::take(&mut self.0) }
    }
}
