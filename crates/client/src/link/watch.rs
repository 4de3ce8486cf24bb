//! What the connection's thread sleeps on.

use super::nudge::Nudge;
use crate::ClientError;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

const WAKE: u64 = 0;
const READ: u64 = 1;
const WRITE: u64 = 2;

/// What has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// An epoll, so that another thread can take the socket out of this one's sleep without waking it.
///
/// Reading and writing are armed for one report each. Whoever owns the read side arms it again when done:
/// a report that comes while another thread owns it is dropped, and that thread's arming repeats it.
pub(super) struct Watch {
    epoll: OwnedFd,
    /// Holds the socket alone, for writing: an epoll has one entry a descriptor, and whoever arms reading must
    /// not have to know whether writing is armed.
    room: OwnedFd,
    wake: Nudge,
}

impl Watch {
    pub(super) fn new() -> Result<Self, ClientError> {
        let failed = |what| move |error: Errno| ClientError::system(what)(error.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed("epoll"))?;
        let room = epoll::create(CreateFlags::CLOEXEC).map_err(failed("epoll"))?;
        let wake = Nudge::new()?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(failed("epoll"))?;
        epoll::add(&epoll, &room, EventData::new_u64(WRITE), EventFlags::IN).map_err(failed("epoll"))?;
        Ok(Self { epoll, room, wake })
    }

    /// Ends the present or next sleep.
    pub(super) fn wake(&self) {
        self.wake.raise();
    }

    /// A new connection: reading is armed, writing is not.
    pub(super) fn add(&self, socket: &OwnedFd) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(READ), EventFlags::IN | EventFlags::ONESHOT)?;
        epoll::add(&self.room, socket, EventData::new_u64(WRITE), EventFlags::ONESHOT)
    }

    /// The connection is over. A thread that still waits on it may arm it in vain.
    pub(super) fn remove(&self, socket: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, socket);
        let _ = epoll::delete(&self.room, socket);
    }

    /// Reports once when bytes are there, at once if they are there already.
    pub(super) fn arm_read(&self, socket: &OwnedFd) {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        // Fails only for a connection that is over.
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(READ), flags);
    }

    /// Reports nothing but, once, the end of the connection.
    pub(super) fn disarm_read(&self, socket: &OwnedFd) {
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(READ), EventFlags::ONESHOT);
    }

    /// Reports once when there is room.
    pub(super) fn arm_write(&self, socket: &OwnedFd) {
        let flags = EventFlags::OUT | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.room, socket, EventData::new_u64(WRITE), flags);
    }

    /// Sleeps; at most for `timeout`, for ever without one.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Ready, Errno> {
        let mut events = Vec::with_capacity(4);
        let timeout = timeout.map(timespec);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ready = Ready::default();
        for event in &events {
            let data = event.data;
            match data.u64() {
                WAKE => self.wake.clear(),
                WRITE => {
                    ready.write = true;
                    // Takes the one report, or the outer epoll would repeat it for ever.
                    let mut taken = Vec::with_capacity(1);
                    let _ = epoll::wait(
                        &self.room,
                        rustix::buffer::spare_capacity(&mut taken),
                        Some(&timespec(Duration::ZERO)),
                    );
                }
                _ => ready.read = true,
            }
        }
        Ok(ready)
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap()
    }

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const READ_ONLY: Ready = Ready { read: true, write: false };

    #[test]
    fn a_report_comes_once_until_armed_again_and_then_for_the_same_bytes() {
        let (ours, theirs) = pair();
        let watch = Watch::new().unwrap();
        watch.add(&ours).unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        assert_eq!(watch.wait(NOW), Ok(READ_ONLY));
        assert_eq!(watch.wait(NOW), Ok(Ready::default()));
        watch.arm_read(&ours);
        assert_eq!(watch.wait(NOW), Ok(READ_ONLY));
    }

    #[test]
    fn bytes_that_come_while_disarmed_are_reported_when_armed() {
        let (ours, theirs) = pair();
        let watch = Watch::new().unwrap();
        watch.add(&ours).unwrap();
        watch.disarm_read(&ours);
        rustix::io::write(&theirs, b"x").unwrap();
        assert_eq!(watch.wait(NOW), Ok(Ready::default()));
        watch.arm_read(&ours);
        assert_eq!(watch.wait(NOW), Ok(READ_ONLY));
    }

    #[test]
    fn room_is_reported_apart_from_bytes() {
        let (ours, _theirs) = pair();
        let watch = Watch::new().unwrap();
        watch.add(&ours).unwrap();
        assert_eq!(watch.wait(NOW), Ok(Ready::default()));
        watch.arm_write(&ours);
        assert_eq!(watch.wait(NOW), Ok(Ready { read: false, write: true }));
        assert_eq!(watch.wait(NOW), Ok(Ready::default()), "once");
        watch.remove(&ours);
        watch.arm_write(&ours);
        assert_eq!(watch.wait(NOW), Ok(Ready::default()));
    }

    #[test]
    fn a_wake_ends_one_sleep() {
        let watch = Watch::new().unwrap();
        watch.wake();
        assert_eq!(watch.wait(None), Ok(Ready::default()));
    }
}
