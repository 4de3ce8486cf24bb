//! A stand-in for `libcuda.so.1`: device memory is host memory, a stream is a thread, and faults are planned.
//!
//! It keeps the rules of the driver that code most easily breaks without a GPU noticing:
//! - a wait on an event that was never recorded is no wait;
//! - a copy from or to host memory that is not registered returns only when it is done;
//! - a range that reaches over two registrations is refused, and so is registering memory twice;
//! - a copy engine, one a direction, serves one stream for as long as that has copies that may begin;
//! - some calls spoil the graph capture of another thread, unless their thread has opted out;
//! - a kernel sees host memory under another address than the host does, reads its arguments' memory when it runs, and
//!   ends the context if it touches what is neither registered nor device memory;
//! - after a sticky error every call fails, yet what was queued may go on moving bytes until the context is gone.
//!
//! Each device is a world of its own, so that tests of one process do not meet: take one with `Fake::device`.
//! The shared object's state is reached only through its own symbols; a test links the handle, never the driver.

mod control;
mod copies;
mod copy_engine;
mod device;
mod entry;
mod event;
mod kernels;
mod plan;
mod stream;

pub use control::{Fake, FakeDevice};
pub use plan::FakeStats;

/// Devices of the fake host.
pub const DEVICES: usize = 256;

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`, a sticky error.
pub const ILLEGAL_ADDRESS: i32 = 700;
