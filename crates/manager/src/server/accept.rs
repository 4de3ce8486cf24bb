//! New connections, and their end.

use super::{Server, timers};
use crate::connection::{Connection, Stage};
use crate::poller::Token;
use crate::tally::CloseReason;
use orbitkv_core::{Event, SessionId};
use orbitkv_shm::peer_credentials;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Connections taken before those that are served have their turn.
const ACCEPTS: usize = 16;

impl Server {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely: the listener stays readable and would spin.
                    tracing::warn!(%error, "cannot accept a connection; trying again in 100 ms");
                    if let Some(listener) = &self.listener {
                        let _ = self.poller.watch(listener, Token::Listener, false, false);
                    }
                    self.accept_after = Some(self.clock.now().plus_ms(timers::ACCEPT_PAUSE_MS));
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) {
        self.tally.connections += 1;
        self.next_connection += 1;
        let id = self.next_connection;
        let watched = stream.set_nonblocking(true).and_then(|()| {
            let peer = peer_credentials(stream.as_fd())?;
            self.poller.add(&stream, Token::Connection(id))?;
            Ok(peer)
        });
        let peer = match watched {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "connection lost before it was served");
                self.tally.closed(CloseReason::Socket);
                return;
            }
        };
        let us = rustix::process::geteuid().as_raw();
        let most = self.core.config().sessions;
        let full = self.connections.len() >= most;
        self.connections.insert(id, Connection::new(stream, peer));
        if peer.uid != us {
            self.reject(id, &format!("this manager serves user {us} only, not user {}", peer.uid));
        } else if full {
            self.reject(id, &format!("{most} connections are open, the most this manager serves"));
        } else {
            self.greetings.push_back((self.clock.now().plus_ms(timers::GREETING_MS), id));
        }
    }

    /// Ends the session of a connection and closes it once its replies are sent.
    pub(super) fn close_after_replies(&mut self, id: u64, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.stage == Stage::Closing {
            return;
        }
        let stage = std::mem::replace(&mut connection.stage, Stage::Closing);
        // Not read any more: what it still asks for has no owner.
        let _ = self.poller.watch(&connection.stream, Token::Connection(id), false, connection.awaits_room);
        self.tally.closed(reason);
        if let Stage::Serving { session, .. } = stage {
            self.end_session(session, reason);
        }
        self.farewells.push_back((self.clock.now().plus_ms(timers::FAREWELL_MS), id));
        self.mark_dirty(id);
    }

    /// Closes a connection now.
    pub(super) fn close(&mut self, id: u64, reason: CloseReason) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let _ = self.poller.remove(&connection.stream);
        if connection.stage != Stage::Closing {
            self.tally.closed(reason);
        }
        if let Stage::Serving { session, .. } = connection.stage {
            self.end_session(session, reason);
        }
    }

    /// Carries out what effects could only ask for.
    pub(super) fn settle(&mut self) {
        while let Some((id, reason)) = self.doomed.pop_front() {
            self.close(id, reason);
        }
        self.report_failed_growths();
    }

    /// Interest ends here. Custody ends by evidence: see `evidence.rs`.
    fn end_session(&mut self, id: u64, reason: CloseReason) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.connection = None;
            session.attested = false;
            session.active = false;
        }
        self.pool.session_closed(id);
        tracing::info!(session = id, reason = reason.name(), "session closed");
        self.feed(Event::SessionClosed { session: SessionId(id) });
    }
}
