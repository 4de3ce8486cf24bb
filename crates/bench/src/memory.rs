//! The only place of this crate that deals in addresses, and that asks the allocator.

use anyhow::Result;
use orbitkv_copy::{CopyDirection, CopyId, CopyJob, Fragment, KvLayout, KvRegion, Step};
use std::sync::Arc;

/// KV memory of one layer. It is never given back: threads of clients may copy until the process ends.
pub(crate) fn layout(num_blocks: usize, block_bytes: usize) -> Result<Arc<KvLayout>> {
    let memory: &'static mut [u8] = Box::leak(vec![7; num_blocks * block_bytes].into_boxed_slice());
    let base = memory.as_mut_ptr().expose_provenance();
    let region = KvRegion { base, block_stride_bytes: block_bytes, block_bytes, num_blocks };
    // SAFETY: the region is the whole of `memory`, which is never freed and reached by nothing else;
    // blocks do not overlap.
    Ok(Arc::new(unsafe { KvLayout::new(vec![region]) }?))
}

/// Bytes of the heap in use, with what the allocator keeps beside each block.
pub(crate) fn heap_bytes() -> usize {
    // SAFETY: the function takes nothing, and returns a value.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Two buffers of equal size.
pub(crate) struct Buffers {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Buffers {
    pub(crate) fn new(bytes: usize) -> Self {
        let source = (0..bytes).map(|at| (at % 251) as u8).collect();
        Self { source, target: vec![0; bytes] }
    }

    /// One to copy from, one to copy to, for the compiler to check.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut [u8]) {
        (&self.source, &mut self.target)
    }

    /// Whether the target holds the source's bytes; forgets them.
    pub(crate) fn take_equal(&mut self) -> bool {
        let equal = self.source == self.target;
        self.target.fill(0);
        equal
    }

    /// Runs a restore of the whole buffer: `layers` steps of fragments of `fragment_bytes`. `copy` must
    /// return only when the job has left custody.
    pub(crate) fn restore(
        &mut self,
        layers: usize,
        fragment_bytes: usize,
        copy: impl FnOnce(CopyJob) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.source.len().min(self.target.len());
        let (from, to) = (self.source.as_ptr(), self.target.as_mut_ptr());
        let per_layer = bytes / layers / fragment_bytes;
        let fragment = |number: usize| {
            let at = number * fragment_bytes;
            // SAFETY: `number < layers * per_layer`, so the fragment ends within both buffers; fragments
            // are disjoint; `self` is borrowed until `copy` returns, when the job is over.
            unsafe { Fragment::new(from.add(at), to.add(at), fragment_bytes) }
        };
        let step = |layer: usize| {
            let numbers = layer * per_layer..(layer + 1) * per_layer;
            Step::new(numbers.map(fragment).collect())
        };
        let steps = (0..layers).map(step).collect();
        copy(CopyJob::new(CopyId(1), CopyDirection::Restore, steps, Vec::new())?)
    }
}

#[cfg(test)]
mod tests {
    use super::heap_bytes;

    #[test]
    fn what_is_taken_from_the_heap_is_seen() {
        // Far more than other tests of this process give back meanwhile.
        let bytes = 1 << 30;
        let before = heap_bytes();
        let taken = std::hint::black_box(vec![0_u8; bytes]);
        assert!(heap_bytes() > before + bytes / 2);
        drop(taken);
    }
}
