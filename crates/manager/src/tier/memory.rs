//! A slower tier in this process's own memory, with a delay: for tests and benchmarks. It is driven by the
//! orders that a disk is driven by.

mod device;
mod store;

use super::handle::{self, Handle};
use crate::tier::Outlet;
use crate::waker::Waker;
use device::Device;
use std::io;
use std::thread;
use std::time::Duration;

/// How large the tier is, and how slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryTierSettings {
    /// Payload it holds; zero: there is no such tier.
    pub(crate) bytes: u64,
    /// From the beginning of a job to its end.
    pub(crate) delay: Duration,
    /// Jobs under way at once; zero: no limit. Others wait in the order of service.
    pub(crate) depth: u32,
}

/// Starts the thread.
pub(super) fn start(settings: MemoryTierSettings, waker: Waker) -> io::Result<Handle> {
    let (handle, ends) = handle::pair();
    thread::Builder::new().name("orbitkv-tier".to_owned()).spawn(move || {
        let (orders, done, _alive) = ends.split();
        Device::new(settings).serve(&orders, &mut Outlet::new(done, waker));
    })?;
    // No bell: it waits for the orders themselves.
    Ok(handle)
}
