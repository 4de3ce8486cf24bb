//! The first frame of a connection.

use super::Server;
use crate::connection::Stage;
use crate::outbox::Ids;
use crate::poller::Token;
use crate::processes::exited;
use crate::registration::Registration;
use crate::sessions::Session;
use crate::tally::CloseReason;
use orbitkv_core::{Effect, Event, SessionId};
use orbitkv_shm::{PidfdError, peer_pidfd};
use orbitkv_wire::{Header, Hello, Resume, ToClient};
use std::os::fd::AsFd;

impl Server {
    pub(super) fn hello(&mut self, id: u64, header: &Header, payload: &[u8]) {
        let hello = match Hello::decode(payload) {
            Ok(hello) => hello,
            Err(error) => return self.reject(id, &error.to_string()),
        };
        if header.session.get() != 0 || header.epoch.get() != hello.epoch {
            return self.reject(id, "the header of a Hello has session 0 and the epoch of the hello");
        }
        let resume = hello.resume.clone();
        let registration = match Registration::from_hello(hello) {
            Ok(registration) => registration,
            Err(error) => return self.reject(id, &error.to_string()),
        };
        let Some(process) = self.process_of(id) else { return };
        self.end_unheard(resume.as_ref().map_or(0, |r| r.session), process, &registration);
        let unowned = resume
            .filter(|r| r.copies_ended)
            .and_then(|Resume { session, .. }| self.copies_ended(session, process, &registration).err());
        self.open(id, process, registration, unowned);
        self.release_idle_process(process);
    }

    /// The process at the other end, watched from now on. Closes the connection if it cannot be.
    fn process_of(&mut self, id: u64) -> Option<u64> {
        let connection = self.connections.get(&id)?;
        let pid = connection.peer.pid;
        let pidfd = match peer_pidfd(connection.stream.as_fd()) {
            Ok(pidfd) if !exited(pidfd.as_fd()) => pidfd,
            Ok(_) | Err(PidfdError::Exited) => {
                self.close(id, CloseReason::ClientClosed);
                return None;
            }
            Err(error) => {
                // Without it, the pages of a client that dies in a copy could never be used again.
                if !std::mem::replace(&mut self.said_unwatchable, true) {
                    tracing::warn!(%error, "client processes cannot be watched: their sessions are refused");
                }
                self.reject(id, &format!("copies are refused: {error}"));
                return None;
            }
        };
        // Alive at the same moment under the same number: the same process, and one pidfd is enough.
        if let Some(process) = self.processes.alive(pid) {
            return Some(process);
        }
        let process = self.processes.add(pid, pidfd);
        let watched =
            self.processes.get(process).map(|p| self.poller.add(p.pidfd(), Token::Process(process)));
        if let Some(Err(error)) = watched {
            tracing::warn!(%error, "cannot watch a client process");
            self.processes.remove(process);
            self.reject(id, &format!("copies are refused: cannot watch the process: {error}"));
            return None;
        }
        Some(process)
    }

    fn open(&mut self, id: u64, process: u64, registration: Registration, unowned: Option<String>) {
        self.forget_idle_sessions();
        let session = self.sessions.next_id();
        let mut effects = std::mem::take(&mut self.scratch.effects);
        let opened = Event::SessionOpened {
            session: SessionId(session),
            client: registration.client,
            epoch: registration.epoch,
            spec: &registration.spec,
        };
        self.core.step(self.clock.now(), opened, &mut effects);
        let refusal = effects.iter().find_map(|effect| match effect {
            Effect::Refused { session: of, refusal, .. } if of.0 == session => Some(refusal.to_string()),
            _ => None,
        });
        if refusal.is_none() {
            self.register(id, session, process, registration);
        }
        // What else the step brought about is carried out either way.
        for effect in effects.drain(..) {
            self.apply(effect);
        }
        self.scratch.effects = effects;
        if let Some(text) = refusal {
            return self.reject(id, &text);
        }
        if let Some(text) = unowned {
            self.send(id, Ids::default(), &ToClient::Refused { text: &text }, None);
        }
    }

    fn register(&mut self, id: u64, session: u64, process: u64, registration: Registration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (epoch, who) = (registration.epoch, &registration);
        connection.stage = Stage::Serving { session, epoch };
        tracing::info!(
            session,
            pid = connection.peer.pid,
            role = who.spec.role.name(),
            rank = who.spec.role.rank(),
            world_size = who.spec.world_size,
            engine = who.engine,
            model = who.model,
            epoch,
            "session opened"
        );
        if let Some(process) = self.processes.get_mut(process) {
            process.sessions.insert(session);
        }
        let fresh = Session { registration, process, connection: Some(id), attested: false, active: false };
        self.sessions.insert(session, fresh);
        self.send(id, Ids::default(), &ToClient::Welcome { boot: self.boot }, None);
    }

    /// Says why a connection is not served, and closes it.
    pub(super) fn reject(&mut self, id: u64, text: &str) {
        tracing::warn!(connection = id, "connection rejected: {text}");
        self.send(id, Ids::default(), &ToClient::Rejected { text }, None);
        self.close_after_replies(id, CloseReason::Rejected);
    }

    /// Says what was wrong with a frame, and closes the connection: what follows cannot be trusted.
    pub(super) fn refuse_and_close(&mut self, id: u64, text: &str) {
        match self.connections.get(&id).map(|c| c.stage) {
            Some(Stage::Greeting) => self.send(id, Ids::default(), &ToClient::Rejected { text }, None),
            _ => self.send(id, Ids::default(), &ToClient::Refused { text }, None),
        }
        self.close_after_replies(id, CloseReason::Protocol);
    }
}
