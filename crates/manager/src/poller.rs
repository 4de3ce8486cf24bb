//! What the core thread waits for.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Most events taken at a time: what is left comes first the next time.
const EVENTS: usize = 128;

/// Who woke us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Listener,
    Signal,
    /// Another thread of ours.
    Wake,
    Connection(u64),
    Process(u64),
}

impl Token {
    fn pack(self) -> u64 {
        let (tag, id) = match self {
            Self::Listener => (0, 0),
            Self::Signal => (1, 0),
            Self::Wake => (2, 0),
            Self::Connection(id) => (3, id),
            Self::Process(id) => (4, id),
        };
        tag << 56 | id
    }

    fn unpack(data: u64) -> Option<Self> {
        let id = data & ((1 << 56) - 1);
        Some(match data >> 56 {
            0 => Self::Listener,
            1 => Self::Signal,
            2 => Self::Wake,
            3 => Self::Connection(id),
            4 => Self::Process(id),
            _ => return None,
        })
    }
}

/// One thing that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: Token,
    /// Bytes, a connection, or an end can be read.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A level-triggered epoll: what is not taken up now is reported again, so every handler may stop
/// early.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Watches for reading.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.pack()), EventFlags::IN)?)
    }

    /// Changes what is watched. With neither, only the end of the other side is reported.
    pub(crate) fn watch(&self, fd: impl AsFd, token: Token, read: bool, write: bool) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token.pack()), flags)?)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits; at most for `timeout`, for ever without one.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Ready>) -> io::Result<()> {
        out.clear();
        // Rounded up to the kernel's millisecond: rounded down, the last one before a deadline would spin.
        let timeout = timeout.map(|t| {
            let ms = i64::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i64::MAX).min(3_600_000);
            Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 }
        });
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        out.extend(self.events.iter().filter_map(|event| {
            let (flags, data) = (event.flags, event.data);
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            Some(Ready {
                token: Token::unpack(data.u64())?,
                readable: ended || flags.contains(EventFlags::IN),
                writable: ended || flags.contains(EventFlags::OUT),
            })
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let largest = (1 << 56) - 1;
        let tokens = [
            Token::Listener,
            Token::Signal,
            Token::Wake,
            Token::Connection(0),
            Token::Connection(largest),
            Token::Process(7),
        ];
        for token in tokens {
            assert_eq!(Token::unpack(token.pack()), Some(token));
        }
        assert_eq!(Token::unpack(u64::MAX), None);
    }
}
