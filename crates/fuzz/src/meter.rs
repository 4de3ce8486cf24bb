//! Bytes that a piece of code asks the allocator for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count for each thread.
struct Meter;

// Installed by the library, so that no binary can run the bodies without it.
#[global_allocator]
static METER: Meter = Meter;

thread_local! {
    // Constant and without a destructor: reaching it allocates nothing.
    static ASKED_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ASKED_BYTES.set(ASKED_BYTES.get().saturating_add(bytes));
}

// SAFETY: every call goes to `System` unchanged, which keeps the contract of the trait.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// The result of `work`, and all bytes that this thread asked for in it, given back or not.
pub fn allocated_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ASKED_BYTES.get();
    let result = work();
    (result, ASKED_BYTES.get() - before)
}
