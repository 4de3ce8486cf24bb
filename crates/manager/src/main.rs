//! `orbitkv-cache-manager`: see `orbitkv_manager` for what it does.
#![forbid(unsafe_code)]

use orbitkv_manager::{Invocation, InvocationError};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// The core's tables are looked up at random: in huge pages that costs less.
#[global_allocator]
static HEAP: orbitkv_shm::Heap = orbitkv_shm::Heap;

fn main() -> ExitCode {
    let invocation = match Invocation::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(InvocationError::Usage(error)) => error.exit(),
        Err(error @ InvocationError::File(_)) => return fail(&error, 2),
    };
    match orbitkv_manager::run(&invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

fn fail(error: &dyn Display, code: u8) -> ExitCode {
    // Nobody left to tell if standard error is gone.
    let _ = writeln!(std::io::stderr(), "error: {error}");
    ExitCode::from(code)
}
