//! Bytes on their way to the manager.

use super::Session;
use orbitkv_wire::{Kind, ToManager, write_frame};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use thiserror::Error;

/// Room for requests. A manager that has not read this much is stuck; further requests are misses.
const REQUEST_BYTES: usize = 4 << 20;
/// Room with what must not get lost, as releases and commits. A connection that needs more is closed:
/// the end of the session then says the same to the manager.
const TOTAL_BYTES: usize = 8 << 20;

/// Whether a message may be dropped when the manager does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The caller has an answer without it.
    Request,
    /// The manager's account depends on it.
    Must,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum SendError {
    /// Its session is not the present one.
    #[error("not connected")]
    Stale,
    /// The manager does not read.
    #[error("the outbound buffer is full")]
    Full,
}

/// The buffer and the socket it drains to.
#[derive(Default)]
pub(super) struct Outbound {
    socket: Option<Arc<OwnedFd>>,
    session: Option<Session>,
    next_operation: u64,
    bytes: Vec<u8>,
    start: usize,
    payload: Vec<u8>,
    /// The socket failed or the buffer overflowed: the thread closes the connection.
    broken: bool,
}

impl Outbound {
    /// A new connection with nothing sent yet but `hello`.
    pub(super) fn attach(&mut self, socket: Arc<OwnedFd>, epoch: u32, hello: &[u8]) -> Result<(), SendError> {
        self.detach();
        self.socket = Some(socket);
        self.push((0, epoch, 0, 0), &ToManager::Hello(hello), TOTAL_BYTES)?;
        self.drain();
        Ok(())
    }

    /// From now on `session` may send.
    pub(super) fn welcome(&mut self, session: Session) {
        self.session = Some(session);
        self.next_operation = 1;
    }

    /// Forgets the connection and everything not sent.
    pub(super) fn detach(&mut self) {
        *self = Self::default();
    }

    pub(super) fn session(&self) -> Option<Session> {
        self.session
    }

    pub(super) fn send(
        &mut self,
        session: u64,
        operation: u64,
        revision: u32,
        message: &ToManager<'_>,
        urgency: Urgency,
    ) -> Result<(), SendError> {
        let pushed = self.push_of((session, operation, revision), message, urgency);
        if pushed == Err(SendError::Full) && urgency == Urgency::Must {
            self.broken = true;
        }
        pushed?;
        self.drain();
        Ok(())
    }

    pub(super) fn open(&mut self, message: &ToManager<'_>) -> Result<(Session, u64), SendError> {
        let opened = self.open_undrained(message)?;
        self.drain();
        Ok(opened)
    }

    /// As `open`; the bytes leave with the next drain.
    pub(super) fn open_undrained(&mut self, message: &ToManager<'_>) -> Result<(Session, u64), SendError> {
        let session = self.session.ok_or(SendError::Stale)?;
        let operation = self.next_operation;
        self.push_of((session.number, operation, 1), message, Urgency::Request)?;
        self.next_operation += 1;
        Ok((session, operation))
    }

    fn push_of(
        &mut self,
        (session, operation, revision): (u64, u64, u32),
        message: &ToManager<'_>,
        urgency: Urgency,
    ) -> Result<(), SendError> {
        let now = self.session.filter(|s| s.number == session && !self.broken).ok_or(SendError::Stale)?;
        let limit = if urgency == Urgency::Must { TOTAL_BYTES } else { REQUEST_BYTES };
        self.push((session, now.epoch, operation, revision), message, limit)
    }

    /// Whether only the connection's thread can go on: bytes are left, or the connection is broken.
    pub(super) fn wants_thread(&self) -> bool {
        self.broken || self.left() > 0
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Gives the socket what it takes now.
    pub(super) fn drain(&mut self) {
        let Some(socket) = &self.socket else { return };
        while self.start < self.bytes.len() {
            let rest = &self.bytes[self.start..];
            match send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.start += sent,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.broken = true;
                    break;
                }
            }
        }
        if self.left() == 0 {
            self.bytes.clear();
            self.start = 0;
            // One large request must not keep its memory for ever.
            self.bytes.shrink_to(64 << 10);
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    fn push(
        &mut self,
        ids: (u64, u32, u64, u32),
        message: &ToManager<'_>,
        limit: usize,
    ) -> Result<(), SendError> {
        message.encode(&mut self.payload);
        let kind: Kind = message.kind();
        let frame_bytes = size_of::<orbitkv_wire::Header>() + self.payload.len();
        let fits = self.left() + frame_bytes <= limit;
        let pushed = if fits {
            write_frame(&mut self.bytes, kind, ids, &self.payload).map_err(|_| SendError::Full)
        } else {
            Err(SendError::Full)
        };
        self.payload.clear();
        self.payload.shrink_to(64 << 10);
        pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_wire::QueryRule;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// An outbound whose peer never reads.
    fn stuck() -> (Outbound, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let mut out = Outbound::default();
        out.attach(Arc::new(ours), 1, b"{}").unwrap();
        out.welcome(Session { number: 7, epoch: 1, boot: 1, welcomed_us: 0 });
        (out, theirs)
    }

    #[test]
    fn requests_are_refused_at_four_mib_and_releases_still_pass() {
        let (mut out, _peer) = stuck();
        let hashes = vec![[1; 32]; 16_384];
        let query =
            ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes };
        let taken = (0..100).take_while(|_| out.open(&query).is_ok()).count();
        assert!((7..9).contains(&taken), "{taken} queries of half a MiB");
        assert!(out.left() <= REQUEST_BYTES);
        assert_eq!(out.open(&query), Err(SendError::Full));
        assert_eq!(out.send(7, 1, 1, &ToManager::Release, Urgency::Must), Ok(()));
        assert!(!out.is_broken());
    }

    #[test]
    fn a_peer_that_does_not_read_what_must_arrive_loses_the_connection() {
        let (mut out, _peer) = stuck();
        let slots = vec![orbitkv_wire::Slot::default(); 8_192];
        let abort = ToManager::Abort(&slots);
        let taken = (0..1000).take_while(|_| out.send(7, 0, 0, &abort, Urgency::Must).is_ok()).count();
        assert!(taken > 0 && out.left() <= TOTAL_BYTES);
        assert!(out.is_broken());
        assert_eq!(out.send(7, 1, 1, &ToManager::Release, Urgency::Must), Err(SendError::Stale));
    }

    #[test]
    fn operation_ids_grow_and_a_refused_one_is_not_used() {
        let (mut out, _peer) = stuck();
        assert_eq!(out.open(&ToManager::Reset).map(|(_, id)| id), Ok(1));
        let over = vec![[1; 32]; (1 << 20) / 32 + 1];
        let query = ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &over };
        assert_eq!(out.open(&query), Err(SendError::Full));
        assert_eq!(out.open(&ToManager::Reset).map(|(_, id)| id), Ok(2));
    }

    #[test]
    fn nothing_is_sent_for_another_session_or_after_the_end() {
        let (mut out, _peer) = stuck();
        assert_eq!(out.send(6, 1, 1, &ToManager::Release, Urgency::Must), Err(SendError::Stale));
        out.detach();
        assert_eq!(out.send(7, 1, 1, &ToManager::Release, Urgency::Must), Err(SendError::Stale));
        assert_eq!(out.left(), 0);
    }
}
