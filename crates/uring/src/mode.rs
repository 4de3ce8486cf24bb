//! How a disk works, for the log and for labels.

use std::fmt;

/// What brings pages to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring.
    IoUring,
    /// pread and pwrite on threads.
    Threads,
}

impl Engine {
    /// For metrics: `io_uring` or `threads`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
        }
    }
}

/// How a disk works now. Worth a line in the log when it is opened, and again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskMode {
    /// What brings pages to the kernel.
    pub engine: Engine,
    /// Whether pages go past the page cache.
    pub direct: bool,
    /// Whether every pool segment that was added is registered with the ring.
    pub registered: bool,
    /// Why something is less than it could be; `None` where all is as fast as it can be.
    pub why: Option<String>,
}

impl DiskMode {
    pub(crate) fn add_reason(&mut self, reason: String) {
        match &mut self.why {
            None => self.why = Some(reason),
            // Once for each cause, however often it is met.
            Some(why) if why.split("; ").any(|known| known == reason) => {}
            Some(why) => {
                why.push_str("; ");
                why.push_str(&reason);
            }
        }
    }
}

impl fmt::Display for DiskMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = if self.direct { "O_DIRECT" } else { "through the page cache" };
        let buffers = if self.registered { "registered buffers" } else { "unregistered buffers" };
        write!(f, "{}, {cache}, {buffers}", self.engine.label())?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_given_once_and_all_are_shown() {
        let mut mode = DiskMode { engine: Engine::Threads, direct: true, registered: false, why: None };
        assert_eq!(mode.to_string(), "threads, O_DIRECT, unregistered buffers");
        for reason in ["a", "b", "a"] {
            mode.add_reason(reason.to_owned());
        }
        assert_eq!(mode.to_string(), "threads, O_DIRECT, unregistered buffers (a; b)");
    }
}
