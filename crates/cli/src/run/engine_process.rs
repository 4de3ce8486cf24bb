//! The engine as a child in the foreground.

use super::RunError;
use super::signals::{SIGNAL_BASE, Signals};
use crate::args::ExecArgs;
use crate::engine::Line;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

/// The running engine.
pub(crate) struct EngineProcess(Child);

impl EngineProcess {
    /// Starts it by way of `exec-with-parent`, so that a SIGKILL of this process does not leave an engine
    /// that nobody waits for.
    pub(crate) fn spawn(program: &Path, line: &Line) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let child = Command::new(this)
            .arg("exec-with-parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(program)
            .args(line.words.get(1..).unwrap_or_default())
            .envs(line.environment.iter().map(|(name, value)| (name, value)))
            .spawn()?;
        Ok(Self(child))
    }

    /// Passes signals on until the engine has ended. `reap` is called whenever a child may have ended.
    pub(crate) fn wait(&mut self, signals: &mut Signals, reap: impl Fn()) -> io::Result<ExitCode> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(exit_code(status));
            }
            reap();
            for signal in signals.wait() {
                self.send(signal);
            }
        }
    }

    /// Not yet waited for, so the process id is still its own.
    fn send(&self, signal: i32) {
        if let (Some(pid), Some(signal)) =
            (Pid::from_raw(self.0.id().cast_signed()), Signal::from_named_raw(signal))
        {
            // It may have ended in this moment; the wait sees that.
            let _ = kill_process(pid, signal);
        }
    }
}

/// The engine's own code, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_BASE + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Replaces this process; returns only when that fails.
pub(crate) fn become_program(program: &Path, arguments: &[OsString]) -> io::Error {
    Command::new(program).args(arguments).exec()
}

/// Asks for SIGTERM at the parent's death and becomes the engine. Here and not in the parent's `fork`,
/// where it would take unsafe code.
pub(crate) fn exec_with_parent(args: &ExecArgs) -> Result<ExitCode, RunError> {
    let program = args.command.first().map(PathBuf::from).unwrap_or_default();
    let failed = |source| RunError::Program { program: program.clone(), source };
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|errno| failed(errno.into()))?;
    // It may have died before it was asked for.
    if getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()) != Some(args.parent_pid) {
        return Err(RunError::Orphan);
    }
    Err(failed(become_program(&program, args.command.get(1..).unwrap_or_default())))
}
