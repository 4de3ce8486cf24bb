//! `orbitkv-cache-manager`: see `orbitkv_manager` for what it does.
#![forbid(unsafe_code)]

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = orbitkv_manager::Args::parse();
    match orbitkv_manager::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody left to tell if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
