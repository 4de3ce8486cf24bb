//! Bytes from clients, cut into frames.

use super::{Server, TURN};
use crate::connection::Stage;
use crate::tally::CloseReason;
use orbitkv_wire::{Header, Kind, ToManager};
use std::io::{self, Read};
use std::time::Instant;

impl Server {
    /// Reads once and takes the connection's turn. What is left in the socket comes in a later one.
    pub(super) fn receive(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.unfinished {
            return;
        }
        if connection.stage == Stage::Closing {
            // Not watched for reading: the other side has ended.
            return self.close(id, CloseReason::ClientClosed);
        }
        let count = match (&connection.stream).read(&mut self.scratch.read) {
            Ok(0) => return self.close(id, CloseReason::ClientClosed),
            Ok(count) => count,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            // A client that dies with replies unread resets the connection.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                return self.close(id, CloseReason::ClientClosed);
            }
            Err(error) => {
                tracing::debug!(connection = id, %error, "read failed");
                return self.close(id, CloseReason::Socket);
            }
        };
        connection.reader.push(self.scratch.read.get(..count).unwrap_or_default());
        self.take_turn(id);
    }

    /// Handles whole frames until there is none, or the turn is over.
    pub(super) fn take_turn(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.unfinished = false;
        if connection.stage == Stage::Closing {
            return;
        }
        // Out of the connection while its frames are handled: they borrow from it.
        let mut reader = std::mem::take(&mut connection.reader);
        let begun = Instant::now();
        let mut start = begun;
        let unfinished = loop {
            match reader.next_frame() {
                Ok(None) => break false,
                Ok(Some((header, kind, payload))) => {
                    self.frame(id, &header, kind, payload);
                    self.settle();
                    let end = Instant::now();
                    let micros = u64::try_from((end - start).as_micros()).unwrap_or(u64::MAX);
                    self.tally.handling.observe_micros(micros);
                    let stage = self.connections.get(&id).map(|c| c.stage);
                    if matches!(stage, None | Some(Stage::Closing)) {
                        return;
                    }
                    if end - begun >= TURN {
                        break true;
                    }
                    start = end;
                }
                Err(error) => {
                    tracing::warn!(connection = id, %error, "bytes that are no frame");
                    return self.refuse_and_close(id, &error.to_string());
                }
            }
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reader = reader;
            connection.unfinished = unfinished;
            if unfinished {
                self.unfinished.push_back(id);
            }
        }
    }

    fn frame(&mut self, id: u64, header: &Header, kind: Kind, payload: &[u8]) {
        self.tally.received(kind);
        let Some(stage) = self.connections.get(&id).map(|c| c.stage) else { return };
        let Stage::Serving { session, epoch } = stage else {
            return match kind {
                Kind::Hello => self.hello(id, header, payload),
                _ => self.reject(id, "the first frame of a connection must be Hello"),
            };
        };
        let (got, got_epoch) = (header.session.get(), header.epoch.get());
        if (got, got_epoch) != (session, epoch) {
            let text = format!(
                "frame of session {got}, epoch {got_epoch} on the connection of session {session}, epoch {epoch}"
            );
            tracing::warn!(session, "{text}");
            return self.refuse_and_close(id, &text);
        }
        match ToManager::decode(kind, payload) {
            Ok(ToManager::Hello(_)) => self.refuse_and_close(id, "a second Hello on one connection"),
            Ok(message) => self.request(id, session, header, message),
            Err(error) => {
                tracing::warn!(session, %error, "message refused");
                self.refuse_and_close(id, &error.to_string());
            }
        }
    }
}
