//! Bytes from the manager, and who reads them.

use super::{Fds, Handler, Link, Session};
use crate::clock::monotonic_us;
use orbitkv_shm::recv_with_fds;
use orbitkv_wire::{FrameReader, Header, Kind, ToClient};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const READ_BYTES: usize = 256 << 10;
/// Most descriptors taken from one read, and most kept for frames not yet complete.
const MAX_FDS: usize = 64;
const MAX_KEPT_FDS: usize = 256;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// Try again soon.
    Lost(String),
    /// The manager said no, or speaks something else: try again later.
    Rejected(String),
    /// The client is closed.
    Stopped,
}

/// The read side of one connection. It lies behind a lock of the link: whoever holds that owns the read
/// side, so frames are handled one at a time and in order, on whatever thread.
pub(super) struct Inbound {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) epoch: u32,
    pub(super) session: Option<Session>,
    /// Nothing more is read: the connection's thread is to close it.
    pub(super) over: bool,
    handler: Arc<dyn Handler>,
    fds: Fds,
    buffer: Vec<u8>,
    frames: FrameReader,
}

impl Inbound {
    pub(super) fn new(socket: Arc<OwnedFd>, epoch: u32, handler: Arc<dyn Handler>) -> Self {
        let (buffer, frames) = (vec![0; READ_BYTES], FrameReader::default());
        Self { socket, epoch, session: None, over: false, handler, fds: Fds::new(), buffer, frames }
    }

    /// Takes what has come, once, and handles every whole frame of it; false if nothing has. A caller with
    /// timers looks at them before it reads again.
    pub(super) fn read(&mut self, link: &Link) -> Result<bool, End> {
        // A defect in a handler costs this connection, never the engine.
        let read = catch_unwind(AssertUnwindSafe(|| self.read_once(link)))
            .unwrap_or_else(|_| Err(End::Rejected("internal error in the handling of a message".to_owned())));
        self.over = read.is_err();
        read
    }

    fn read_once(&mut self, link: &Link) -> Result<bool, End> {
        let mut fds = Vec::new();
        let got = match recv_with_fds(self.socket.as_fd(), &mut self.buffer, &mut fds, MAX_FDS) {
            Ok(0) => return Err(End::Lost("the manager closed the connection (trying again)".to_owned())),
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) => return Err(End::Lost(format!("the manager is gone: {error} (trying again)"))),
        };
        self.fds.extend(fds);
        self.frames.push(self.buffer.get(..got).unwrap_or_default());
        // Out of this value while its frames are handled: they borrow from it.
        let mut frames = std::mem::take(&mut self.frames);
        loop {
            match frames.next_frame() {
                Ok(Some((header, kind, payload))) => self.frame(link, &header, kind, payload)?,
                Ok(None) => break,
                Err(error) => return Err(End::Rejected(error.to_string())),
            }
        }
        self.frames = frames;
        if self.fds.len() > MAX_KEPT_FDS {
            return Err(End::Rejected("descriptors without segments".to_owned()));
        }
        Ok(true)
    }

    fn frame(&mut self, link: &Link, header: &Header, kind: Kind, payload: &[u8]) -> Result<(), End> {
        let message = ToClient::decode(kind, payload).map_err(|e| End::Rejected(e.to_string()))?;
        match (message, self.session) {
            (ToClient::Rejected { text }, _) => {
                let text: String = text.chars().take(1000).collect();
                Err(End::Rejected(format!("the manager refused: {text}")))
            }
            (ToClient::Welcome { boot }, None) => self.welcome(link, header.session.get(), boot),
            (ToClient::Welcome { .. }, Some(_)) => {
                Err(End::Rejected("the manager welcomed twice".to_owned()))
            }
            (_, None) => Err(End::Rejected(format!("{} before the welcome", kind.name()))),
            (_, Some(session)) if header.session.get() != session.number => {
                let (got, want) = (header.session.get(), session.number);
                Err(End::Rejected(format!("{} for session {got} on session {want}", kind.name())))
            }
            (message, Some(_)) => self.handler.message(header, message, &mut self.fds).map_err(End::Rejected),
        }
    }

    fn welcome(&mut self, link: &Link, number: u64, boot: u128) -> Result<(), End> {
        if number == 0 {
            return Err(End::Rejected("the manager gave session 0".to_owned()));
        }
        let session = Session { number, epoch: self.epoch, boot, welcomed_us: monotonic_us() };
        self.session = Some(session);
        // The handler first: what it sends in its welcome is the first thing on the session.
        link.lock_out().welcome(session);
        self.handler.welcome(session);
        link.welcomed();
        Ok(())
    }
}
