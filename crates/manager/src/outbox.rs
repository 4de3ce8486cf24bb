//! Frames on their way to one client.

use orbitkv_shm::{Segment, send_with_fds};
use orbitkv_wire::{Kind, ToClient, WireError, write_frame};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use thiserror::Error;

/// Most bytes that wait for one client. It is slower than its own requests then, and its session ends.
pub(crate) const MAX_OUTBOX_BYTES: usize = 4 << 20;

/// Sent bytes are cut off in front once they are this many.
const COMPACT_BYTES: usize = 256 << 10;

/// Why a frame was not queued.
#[derive(Debug, Error)]
pub(crate) enum OutboxError {
    #[error("client reads too slowly: {MAX_OUTBOX_BYTES} bytes of replies are waiting")]
    Full,
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// The operation that a frame is about; zeros for none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) operation: u64,
    pub(crate) revision: u32,
}

/// A bounded queue of bytes, with descriptors at some of them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// Descriptors, each with the index in `bytes` of the first byte of its frame.
    fds: VecDeque<(usize, Arc<Segment>)>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Queues a frame of a session and its epoch; `payload` is scratch space.
    pub(crate) fn push(
        &mut self,
        (session, epoch): (u64, u32),
        ids: Ids,
        message: &ToClient<'_>,
        fd: Option<Arc<Segment>>,
        payload: &mut Vec<u8>,
    ) -> Result<Kind, OutboxError> {
        message.encode(payload);
        let waiting = self.bytes.len() - self.sent;
        if waiting + payload.len() + size_of::<orbitkv_wire::Header>() > MAX_OUTBOX_BYTES {
            return Err(OutboxError::Full);
        }
        let at = self.bytes.len();
        let kind = message.kind();
        let header = (session, epoch, ids.operation, ids.revision);
        write_frame(&mut self.bytes, kind, header, payload)?;
        if let Some(segment) = fd {
            self.fds.push_back((at, segment));
        }
        Ok(kind)
    }

    /// Sends what the socket takes; true when nothing is left.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while !self.is_empty() {
            // A descriptor goes with the first byte of its frame: a send ends before the next such byte.
            let first = self.fds.front().filter(|(at, _)| *at == self.sent).map(|(_, s)| Arc::clone(s));
            let next = self.fds.iter().map(|(at, _)| *at).find(|at| *at > self.sent);
            let end = next.unwrap_or(self.bytes.len());
            let fds: Vec<_> = first.iter().map(|segment| segment.as_fd()).collect();
            match send_with_fds(socket, &[IoSlice::new(&self.bytes[self.sent..end])], &fds) {
                Ok(count) => {
                    if first.is_some() && count > 0 {
                        self.fds.pop_front();
                    }
                    self.sent += count;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.compact();
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        self.compact();
        Ok(true)
    }

    fn compact(&mut self) {
        if self.is_empty() {
            self.bytes.clear();
            // A burst is over: its memory is not kept for every session.
            self.bytes.shrink_to(COMPACT_BYTES);
        } else if self.sent < COMPACT_BYTES {
            return;
        } else {
            self.bytes.drain(..self.sent);
            for (at, _) in &mut self.fds {
                *at -= self.sent;
            }
        }
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_shm::recv_with_fds;
    use orbitkv_wire::FrameReader;
    use std::os::unix::net::UnixStream;

    fn push(
        outbox: &mut Outbox,
        message: &ToClient<'_>,
        fd: Option<&Arc<Segment>>,
    ) -> Result<Kind, OutboxError> {
        outbox.push((7, 1), Ids::default(), message, fd.map(Arc::clone), &mut Vec::new())
    }

    #[test]
    fn descriptors_arrive_in_order_with_their_frames() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let segments = [4096, 8192, 12_288].map(|bytes| Arc::new(Segment::create("t", bytes).unwrap()));
        let mut outbox = Outbox::default();
        let text = "x".repeat(100_000);
        for (i, segment) in segments.iter().enumerate() {
            push(&mut outbox, &ToClient::Refused { text: &text }, None).unwrap();
            let bytes = segment.bytes() as u64;
            let message = ToClient::Segment { segment: i as u32, slot_bytes: 4096, bytes };
            push(&mut outbox, &message, Some(segment)).unwrap();
        }
        let (mut reader, mut fds, mut seen) = (FrameReader::default(), Vec::new(), 0);
        let mut buffer = vec![0; 10_000];
        while seen < 6 {
            outbox.flush(ours.as_fd()).unwrap();
            if let Ok(count) = recv_with_fds(theirs.as_fd(), &mut buffer, &mut fds, 8) {
                reader.push(&buffer[..count]);
            }
            while let Some((_, kind, payload)) = reader.next_frame().unwrap() {
                seen += 1;
                if let ToClient::Segment { bytes, .. } = ToClient::decode(kind, payload).unwrap() {
                    let fd = fds.remove(0);
                    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size as u64, bytes);
                }
            }
        }
        assert!(fds.is_empty() && outbox.is_empty());
    }

    #[test]
    fn more_than_the_limit_is_refused_and_nothing_is_half_queued() {
        let mut outbox = Outbox::default();
        let text = "x".repeat(1 << 20);
        let mut queued = 0;
        while push(&mut outbox, &ToClient::Refused { text: &text }, None).is_ok() {
            queued += 1;
        }
        assert_eq!(queued, 3);
        assert_eq!(outbox.bytes.len(), 3 * (text.len() + 64));
        assert!(matches!(
            push(&mut outbox, &ToClient::Refused { text: &text }, None),
            Err(OutboxError::Full)
        ));
    }
}
