//! This program again, in another mode.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// More than any process here takes to start.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A process that ends with this value.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a mode of this program and waits until it has made `sign`.
    pub(crate) fn start<A: AsRef<OsStr>>(args: &[A], sign: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("the path of this program")?;
        let child = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut process = Self(child.context("cannot start this program again")?);
        until("the other process is ready", || {
            if let Some(status) = process.0.try_wait()? {
                bail!("the other process ended with {status}");
            }
            Ok(sign.exists())
        })?;
        Ok(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended already: nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks again every tenth of a millisecond until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LONG;
    while !done()? {
        if Instant::now() > end {
            bail!("not within {} s: {what}", LONG.as_secs());
        }
        sleep(Duration::from_micros(100));
    }
    Ok(())
}
