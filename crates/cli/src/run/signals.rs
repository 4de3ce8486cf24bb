//! Signals to this process, and which of them the engine must still be told of.

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::io;
use std::process::ExitCode;

/// Exit codes of programs that a signal ended, as shells report them.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// Everything that ends this process or its child, as events instead.
pub(crate) struct Signals {
    events: SignalsInfo<WithOrigin>,
    /// The first ending one.
    ending: Option<i32>,
}

impl Signals {
    pub(crate) fn register() -> io::Result<Self> {
        let events = SignalsInfo::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD])?;
        Ok(Self { events, ending: None })
    }

    /// The first ending signal that has come so far.
    pub(crate) fn ending(&mut self) -> Option<i32> {
        let pending: Vec<Origin> = self.events.pending().collect();
        self.note(&pending);
        self.ending
    }

    /// Waits for signals; returns those that the engine must be sent.
    pub(crate) fn wait(&mut self) -> Vec<i32> {
        let came: Vec<Origin> = self.events.wait().collect();
        self.note(&came);
        came.iter().filter(|origin| must_forward(origin)).map(|origin| origin.signal).collect()
    }

    /// Exit code of a run that the first ending signal ended before the engine began.
    pub(crate) fn exit_code(&self) -> ExitCode {
        u8::try_from(SIGNAL_BASE + self.ending.unwrap_or(SIGTERM)).map_or(ExitCode::FAILURE, ExitCode::from)
    }

    fn note(&mut self, came: &[Origin]) {
        let first = came.iter().map(|origin| origin.signal).find(|signal| *signal != SIGCHLD);
        self.ending = self.ending.or(first);
    }
}

/// The terminal sends its signals (Ctrl-C, hang-up) to all of its foreground processes: the engine has
/// them too, and would take a second Ctrl-C for impatience.
fn must_forward(origin: &Origin) -> bool {
    origin.signal != SIGCHLD && !matches!(origin.cause, Cause::Kernel)
}
