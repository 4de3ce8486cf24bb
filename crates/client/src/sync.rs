//! What threads exchange: the standard library's primitives or, with `--cfg loom`, those of a model checker that
//! tries every order in which they can act (`models.rs`, beside what they model).

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::yield_now,
};
#[cfg(loom)]
pub(crate) use once::OnceLock;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic},
    thread::yield_now,
};

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

#[cfg(loom)]
mod once {
    use loom::sync::atomic::{AtomicBool, Ordering};

    /// The standard library's, of which loom has no model: a value, and two flags that loom watches.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        taken: AtomicBool,
        there: AtomicBool,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self {
                value: std::sync::OnceLock::new(),
                taken: AtomicBool::new(false),
                there: AtomicBool::new(false),
            }
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            if self.taken.swap(true, Ordering::AcqRel) {
                return Err(value);
            }
            self.value.set(value)?;
            self.there.store(true, Ordering::Release);
            Ok(())
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.there.load(Ordering::Acquire) { self.value.get() } else { None }
        }
    }
}
