//! `orbitkv`: runs a serving engine with the cache, shows what the cache manager does, says why there are no
//! hits, and checks cache directories.
#![forbid(unsafe_code)]

mod args;
mod doctor;
mod engine;
mod manager;
mod program;
mod run;
mod say;
mod status;
mod verify_ssd;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match dispatch(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            say::line(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    Ok(match command {
        Command::Run(args) => run::run(&args)?,
        Command::Status(args) => status::command(&args)?,
        Command::Doctor(args) => doctor::command(&args),
        Command::VerifySsd(args) => verify_ssd::command(&args),
        Command::ExecWithParent(args) => run::exec_with_parent(&args)?,
    })
}
