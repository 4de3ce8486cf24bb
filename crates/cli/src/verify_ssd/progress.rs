//! How far a check is, for who waits at a terminal.

use crate::say;
use bytesize::ByteSize;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines.
const PERIOD: Duration = Duration::from_secs(5);

/// Says a line on standard error now and then; nothing where that is no terminal.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    total: usize,
    total_bytes: u64,
    begun: Instant,
    last: Instant,
    done: usize,
    done_bytes: u64,
}

impl Progress {
    /// For that many segments.
    pub(super) fn new(total: usize, total_bytes: u64) -> Self {
        let (shown, now) = (std::io::stderr().is_terminal(), Instant::now());
        Self { shown, total, total_bytes, begun: now, last: now, done: 0, done_bytes: 0 }
    }

    /// One more has been read.
    pub(super) fn segment(&mut self, bytes: u64) {
        self.done += 1;
        self.done_bytes += bytes;
        if self.shown && self.last.elapsed() >= PERIOD {
            self.last = Instant::now();
            say::line(&self.text(self.begun.elapsed()));
        }
    }

    fn text(&self, elapsed: Duration) -> String {
        let per_second = self.done_bytes as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "{} of {} segments, {} of {}, {}/s",
            self.done,
            self.total,
            size(self.done_bytes),
            size(self.total_bytes),
            size(per_second as u64)
        )
    }
}

/// As people read it.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_of_how_much_and_how_fast() {
        let mut progress = Progress::new(4, 4 << 30);
        progress.segment(1 << 30);
        let text = progress.text(Duration::from_secs(2));
        assert_eq!(text, "1 of 4 segments, 1.0 GiB of 4.0 GiB, 512.0 MiB/s");
    }
}
