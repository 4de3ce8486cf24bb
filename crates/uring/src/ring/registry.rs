//! Pool segments that the ring knows, so that the kernel need not look up their pages for each request.

use io_uring::IoUring;
use orbitkv_shm::Region;
use std::collections::BTreeMap;
use std::io;
use std::ptr;
use std::sync::Arc;

/// Segments that can be registered at once.
const SLOTS: u16 = 4096;

/// Which segment is in which slot of the ring's table.
#[derive(Debug)]
pub(super) struct Registry {
    /// What is registered, by its address: it stays mapped, and no other can have the address, while it is here.
    known: BTreeMap<usize, (u16, Arc<Region>)>,
    /// Slots that nothing is in; the next one last.
    free: Vec<u16>,
    /// Added, and not registered.
    refused: Vec<Arc<Region>>,
    /// Why the ring has no table.
    refusal: Option<String>,
}

impl Registry {
    pub(super) fn new(ring: &IoUring, wanted: bool) -> Self {
        let refusal = if wanted {
            let table = ring.submitter().register_buffers_sparse(SLOTS.into());
            table.err().map(|error| reason(&error))
        } else {
            Some("registration of buffers is switched off".to_owned())
        };
        Self { known: BTreeMap::new(), free: (0..SLOTS).rev().collect(), refused: Vec::new(), refusal }
    }

    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.refusal.is_none() && self.refused.is_empty()
    }

    /// The slot of a segment.
    pub(super) fn slot(&self, region: &Arc<Region>) -> Option<u16> {
        self.known.get(&address(region)).map(|(slot, _)| *slot)
    }

    /// Registers a segment; one that is known stays as it is.
    pub(super) fn add(&mut self, ring: &IoUring, region: &Arc<Region>) -> Result<(), String> {
        if self.slot(region).is_some() || self.refused.iter().any(|known| Arc::ptr_eq(known, region)) {
            return Ok(());
        }
        let registered = self.register(ring, region);
        if registered.is_err() {
            self.refused.push(Arc::clone(region));
        }
        registered
    }

    fn register(&mut self, ring: &IoUring, region: &Arc<Region>) -> Result<(), String> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let Some(slot) = self.free.last().copied() else {
            return Err(format!("more than {SLOTS} segments: make them larger"));
        };
        let memory = libc::iovec { iov_base: region.as_ptr().cast(), iov_len: region.bytes() };
        // SAFETY: the map is valid while `known` holds the region, which it does until the slot is emptied.
        unsafe { update(ring, slot, memory) }.map_err(|error| reason(&error))?;
        self.free.pop();
        self.known.insert(address(region), (slot, Arc::clone(region)));
        Ok(())
    }

    /// Empties the slot of a segment. Requests under way keep the kernel's hold on it until they end.
    pub(super) fn remove(&mut self, ring: &IoUring, region: &Arc<Region>) {
        self.refused.retain(|known| !Arc::ptr_eq(known, region));
        let Some(slot) = self.slot(region) else { return };
        let nothing = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty entry names no memory.
        let emptied = unsafe { update(ring, slot, nothing) };
        // Where the kernel does not let go, the segment stays mapped.
        if emptied.is_ok() {
            self.known.remove(&address(region));
            self.free.push(slot);
        }
    }
}

fn address(region: &Arc<Region>) -> usize {
    Arc::as_ptr(region).addr()
}

/// Puts one entry into the ring's table.
///
/// # Safety
/// The memory is valid until the entry is replaced, or the ring is gone.
unsafe fn update(ring: &IoUring, slot: u16, memory: libc::iovec) -> io::Result<()> {
    loop {
        // SAFETY: as this function's.
        let updated = unsafe { ring.submitter().register_buffers_update(slot.into(), &[memory], None) };
        match updated {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM) => {
            "the memory-lock limit does not allow buffers to be registered: raise it (ulimit -l)".to_owned()
        }
        Some(libc::EINVAL) => "this kernel's io_uring has no table of buffers: Linux 5.19 has".to_owned(),
        _ => format!("buffers cannot be registered: {error}"),
    }
}
