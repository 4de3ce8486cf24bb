//! The SSD tier: a thread for each cache directory, which owns the directory's log and its disk.
//!
//! The thread takes the orders that the memory tier takes. It does one turn after the other: take orders, read
//! one more segment of what earlier runs left, begin what the disk has room for, end what the disk has ended.
//! Whatever goes wrong is a miss, a page that is not written, or a change of [`SsdState`]; never an end of serving.

mod device;
mod health;
mod heat;
#[cfg(feature = "test-hooks")]
mod hooks;
mod moves;
mod names;
mod open;
mod page_disk;
mod reads;
mod recovering;
mod report;
mod room;
mod settings;
mod task;
#[cfg(test)]
mod tests;
mod uring_disk;
mod write_budget;
mod writes;

pub(crate) use names::{MAX_DIRECTORIES, device_of};
pub use open::SsdError;
pub(crate) use open::{OpenedDirectory, open};
pub(crate) use report::{Report, SsdState, SsdStatus};
pub(crate) use settings::{Capacity, SsdSettings};
pub(crate) use write_budget::WriteBudget;

use crate::tier::{Bell, Handle, Outlet, pair};
use crate::waker::Waker;
use device::Device;
use page_disk::PageDisk;
use std::io;
use std::sync::Arc;
use std::thread;

/// Starts the thread of a directory.
pub(crate) fn start<D: PageDisk>(
    directory: OpenedDirectory<D>,
    number: u8,
    budget: WriteBudget,
    waker: Waker,
) -> io::Result<(Handle, Arc<Report>)> {
    let OpenedDirectory { mut log, path } = directory;
    let (handle, ends) = pair();
    let bell = log.disk_mut().bell();
    let (shown, mode) = (path.display(), log.disk_mut().mode());
    tracing::info!(directory = %shown, mode, "SSD cache");
    let report = Arc::new(Report::new(SsdStatus {
        path: shown.to_string(),
        mode,
        direct: log.disk_mut().is_direct(),
        engine: log.disk_mut().engine(),
        registered: log.disk_mut().is_registered(),
        ..SsdStatus::default()
    }));
    let told = Arc::clone(&report);
    let thread = thread::Builder::new().name(format!("orbitkv-ssd-{number}")).spawn(move || {
        let (orders, done, _alive) = ends.split();
        Device::new(number, log, budget, told, Outlet::new(done, waker)).run(&orders);
    })?;
    let thread = thread.thread().clone();
    let bell = bell.unwrap_or_else(|| -> Bell { Arc::new(move || thread.unpark()) });
    Ok((handle.with_bell(bell), report))
}
