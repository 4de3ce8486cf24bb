//! What threads exchange: the standard library's primitives or, with `--cfg loom`, those of a model checker that
//! tries every order in which they can act (`models.rs`, beside what they model).

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Waits at most `timeout` while `waiting` says so.
#[cfg(not(loom))]
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    waiting: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_timeout_while(guard, timeout, waiting).unwrap_or_else(PoisonError::into_inner).0
}

/// The same where no time passes: only a wake-up ends a wait, and one that is lost is a deadlock, which fails the
/// model.
#[cfg(loom)]
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    mut guard: MutexGuard<'a, T>,
    timeout: Duration,
    mut waiting: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    while !timeout.is_zero() && waiting(&mut guard) {
        guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
    guard
}

/// Runs `body` in every order of its threads. They are switched four times at most where none of them waits: every
/// planted defect is found with that.
#[cfg(all(test, loom))]
pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(body);
}
