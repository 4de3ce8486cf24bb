//! Frames to clients.

use super::Server;
use crate::connection::Stage;
use crate::outbox::{Ids, OutboxError};
use crate::poller::Token;
use crate::tally::CloseReason;
use orbitkv_core::SessionId;
use orbitkv_shm::Segment;
use orbitkv_wire::ToClient;
use std::os::fd::AsFd;
use std::sync::Arc;

impl Server {
    /// Queues a frame for a session, if it is still connected.
    pub(super) fn send_to(&mut self, session: SessionId, ids: Ids, message: &ToClient<'_>) {
        if let Some(connection) = self.sessions.get(session.0).and_then(|s| s.connection) {
            self.send(connection, ids, message, None);
        }
    }

    /// Queues a frame; it is sent at the end of the turn. A connection that cannot take it is closed.
    pub(super) fn send(&mut self, id: u64, ids: Ids, message: &ToClient<'_>, fd: Option<Arc<Segment>>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (session, epoch) = match connection.stage {
            Stage::Serving { session, epoch } => (session, epoch),
            Stage::Greeting | Stage::Closing => (0, 0),
        };
        match connection.outbox.push((session, epoch), ids, message, fd, &mut self.scratch.payload) {
            Ok(kind) => {
                self.tally.sent(kind);
                self.mark_dirty(id);
            }
            Err(error) => {
                tracing::warn!(session, "{error}; its session ends");
                let slow = matches!(error, OutboxError::Full);
                let reason = if slow { CloseReason::SlowReader } else { CloseReason::Protocol };
                self.doomed.push_back((id, reason));
            }
        }
    }

    pub(super) fn mark_dirty(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// Sends what this turn has queued.
    pub(super) fn flush_dirty(&mut self) {
        while let Some(id) = self.dirty.pop() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.dirty = false;
                // With the socket full, room is awaited already.
                if !connection.awaits_room {
                    self.flush(id);
                }
            }
        }
        self.settle();
    }

    pub(super) fn flush(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.outbox.flush(connection.stream.as_fd()) {
            Ok(true) if connection.stage == Stage::Closing => self.close(id, CloseReason::ClientClosed),
            Ok(empty) => {
                if connection.awaits_room == empty {
                    connection.awaits_room = !empty;
                    let reads = connection.stage != Stage::Closing;
                    let token = Token::Connection(id);
                    if let Err(error) = self.poller.watch(&connection.stream, token, reads, !empty) {
                        tracing::warn!(connection = id, %error, "cannot watch a connection");
                        self.doomed.push_back((id, CloseReason::Socket));
                    }
                }
            }
            Err(error) => {
                // Its end is read from the socket too; the reason here is the same.
                tracing::debug!(connection = id, %error, "write failed");
                self.doomed.push_back((id, CloseReason::ClientClosed));
            }
        }
    }
}
