//! The heap of a process that looks things up in large tables.

use rustix::mm::{Advice, madvise};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// A transparent huge page of x86-64 and of arm64 with small pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The system's allocator, whose large blocks lie in huge pages where the host has them (`madvise` or `always` in
/// `/sys/kernel/mm/transparent_hugepage/enabled`). A lookup in an index of many megabytes misses the processor's
/// address cache in small pages at nearly every step. To be set as the `#[global_allocator]` of a program.
///
/// Large is a huge page or more; such a block begins on a border of one, and is copied when it grows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// The layout that is asked of the system for a large block; `None` for all others.
fn large(layout: Layout) -> Option<Layout> {
    if layout.size() < HUGE_PAGE_BYTES {
        return None;
    }
    layout.align_to(HUGE_PAGE_BYTES).ok()
}

// SAFETY: every block is one of `System`, asked for and given back with the same layout: `large` depends on the
// layout alone, and what it returns is at least as large and as aligned. Nothing here panics.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(aligned) = large(layout) else {
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.alloc(layout) };
        };
        // SAFETY: `aligned` has the size of `layout`, which is not zero.
        let block = unsafe { System.alloc(aligned) };
        if !block.is_null() {
            // SAFETY: the range is the block's own, in whole small pages, and advice for huge pages changes no
            // byte of it. A kernel without them says so, and the block stays as it is.
            let _ = unsafe { madvise(block.cast(), whole_pages(layout.size()), Advice::LinuxHugepage) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: allocated by `System` with exactly this layout, see above.
        unsafe { System.dealloc(block, large(layout).unwrap_or(layout)) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(aligned) = large(layout) else {
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.alloc_zeroed(layout) };
        };
        // SAFETY: as in `alloc`. The kernel's zeros of a fresh block are not trusted to be there: it may be one
        // that was used.
        unsafe { System.alloc_zeroed(aligned) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(grown) = Layout::from_size_align(size, layout.align()) else {
            return null_mut();
        };
        if large(layout).is_none() && large(grown).is_none() {
            // SAFETY: the caller's promises are passed on, and the block is one of `System` with this layout.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: `size` is not zero, by the caller's promise; the blocks do not overlap and are at least as long
        // as what is copied; the old one is the caller's to give up once the new one exists.
        unsafe {
            let new = self.alloc(grown);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

fn whole_pages(bytes: usize) -> usize {
    bytes / crate::PAGE_BYTES * crate::PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// A block of `size` bytes that hold their places.
    fn filled(size: usize) -> *mut u8 {
        // SAFETY: the size is not zero, and the block is as long.
        unsafe {
            let block = Heap.alloc(layout(size));
            assert!(!block.is_null());
            (0..size).step_by(4096).for_each(|at| block.add(at).write((at / 4096) as u8));
            block
        }
    }

    #[test]
    fn large_blocks_begin_on_a_border_of_a_huge_page_and_keep_their_bytes_as_they_grow_and_shrink() {
        let sizes = [1 << 20, HUGE_PAGE_BYTES, 5 * HUGE_PAGE_BYTES + 4096 + 1, 3 * HUGE_PAGE_BYTES, 1 << 16];
        let mut block = filled(sizes[0]);
        for (old, new) in sizes.into_iter().zip(sizes.into_iter().skip(1)) {
            // SAFETY: the block is one of `Heap` with that layout, and read within both sizes.
            unsafe {
                block = Heap.realloc(block, layout(old), new);
                let kept = (0..old.min(new)).step_by(4096).all(|at| *block.add(at) == (at / 4096) as u8);
                assert!(kept, "{old} to {new} bytes");
                (0..new).step_by(4096).for_each(|at| block.add(at).write((at / 4096) as u8));
            }
            assert!(new < HUGE_PAGE_BYTES || block.addr().is_multiple_of(HUGE_PAGE_BYTES));
        }
        // SAFETY: as above.
        unsafe { Heap.dealloc(block, layout(sizes[4])) };
    }

    #[test]
    fn zeroed_blocks_are_zeroed_where_used_ones_were() {
        for size in [4096, 3 * HUGE_PAGE_BYTES] {
            let used = filled(size);
            // SAFETY: both blocks are of `Heap`, and as long.
            unsafe {
                Heap.dealloc(used, layout(size));
                let block = Heap.alloc_zeroed(layout(size));
                assert!((0..size).all(|at| *block.add(at) == 0), "{size} bytes");
                Heap.dealloc(block, layout(size));
            }
        }
    }

    #[test]
    fn the_kernel_was_told_of_a_large_block() {
        let size = 2 * HUGE_PAGE_BYTES;
        let block = filled(size);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut flags = None;
        let mut inside = false;
        for line in smaps.lines() {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((from, to)) = range.split_once('-')
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&block.addr());
            } else if inside && line.starts_with("VmFlags:") {
                flags = Some(line.to_owned());
            }
        }
        // SAFETY: as above.
        unsafe { Heap.dealloc(block, layout(size)) };
        assert!(flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hg")), "no advice in VmFlags");
    }
}
