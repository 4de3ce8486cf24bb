//! One client's end of the socket.

use crate::outbox::Outbox;
use orbitkv_shm::PeerCredentials;
use orbitkv_wire::FrameReader;
use std::os::unix::net::UnixStream;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The hello has not come yet.
    Greeting,
    /// A session.
    Serving { session: u64, epoch: u32 },
    /// Its session has ended; the last replies are being sent.
    Closing,
}

/// A connection. Its reader holds less than one frame between two reads, unless its turn is not finished: then it is
/// not read from.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    pub(crate) peer: PeerCredentials,
    pub(crate) reader: FrameReader,
    /// It is to have another turn before it is read from again.
    pub(crate) unfinished: bool,
    pub(crate) outbox: Outbox,
    pub(crate) stage: Stage,
    /// The poller waits for room in the socket.
    pub(crate) awaits_room: bool,
    /// The outbox has something that was not tried yet.
    pub(crate) dirty: bool,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream, peer: PeerCredentials) -> Self {
        Self {
            stream,
            peer,
            reader: FrameReader::default(),
            unfinished: false,
            outbox: Outbox::default(),
            stage: Stage::Greeting,
            awaits_room: false,
            dirty: false,
        }
    }
}
