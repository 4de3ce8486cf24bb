//! How it is known that nobody of an ended session touches pool bytes any more.

use super::Server;
use crate::registration::Registration;
use crate::tally::CloseReason;
use orbitkv_core::{Event, Evidence, SessionId};

impl Server {
    /// The pidfd fired. Connections that are still open close first: interest ends before custody.
    pub(super) fn process_exited(&mut self, id: u64) {
        let Some(process) = self.processes.remove(id) else { return };
        let _ = self.poller.remove(process.pidfd());
        for session in process.sessions {
            if let Some(connection) = self.sessions.get(session).and_then(|s| s.connection) {
                self.close(connection, CloseReason::ProcessExit);
            }
            self.sessions.remove(session);
            self.feed(Event::SessionGone { session: SessionId(session), evidence: Evidence::ProcessExit });
        }
    }

    /// A client says that all copies of its session `old` have ended. Believed only from the same
    /// client in the same process, and only about a session older than the one that speaks.
    ///
    /// # Errors
    /// Text for the client if the session is not its own, or never was. One that is gone already is
    /// no error: the client cannot know.
    pub(super) fn copies_ended(
        &mut self,
        old: u64,
        process: u64,
        speaker: &Registration,
    ) -> Result<(), String> {
        let Some(session) = self.sessions.get(old) else {
            return if self.sessions.was_given(old) { Ok(()) } else { Err(format!("no session {old}")) };
        };
        let whose = &session.registration;
        if session.process != process || whose.client != speaker.client {
            return Err(format!("session {old} belongs to another client or process"));
        }
        if whose.epoch >= speaker.epoch {
            return Err(format!("session {old} is not older than the one that says its copies ended"));
        }
        self.attested(old);
        Ok(())
    }

    /// Ends sessions that were opened and whose welcome never reached the client: it names the last one
    /// that did, so it has started no copy in a later one and will never speak of it.
    pub(super) fn end_unheard(&mut self, last_heard: u64, process: u64, speaker: &Registration) {
        for session in self.sessions.unheard(last_heard, process, speaker) {
            self.attested(session);
        }
    }

    fn attested(&mut self, old: u64) {
        let Some(session) = self.sessions.get(old) else { return };
        let (process, connection) = (session.process, session.connection);
        // Its end may not have been read from its socket yet.
        if let Some(connection) = connection {
            self.close(connection, CloseReason::Replaced);
        }
        self.sessions.remove(old);
        if let Some(process) = self.processes.get_mut(process) {
            process.sessions.remove(&old);
        }
        self.feed(Event::SessionGone { session: SessionId(old), evidence: Evidence::Attested });
    }

    /// Forgets closed sessions of which the core knows nothing more: nothing was in their custody.
    pub(super) fn forget_idle_sessions(&mut self) {
        let idle = self.sessions.closed_ids().filter(|id| !self.core.knows_session(SessionId(*id)));
        for id in idle.collect::<Vec<_>>() {
            let Some(session) = self.sessions.remove(id) else { continue };
            if let Some(process) = self.processes.get_mut(session.process) {
                process.sessions.remove(&id);
            }
            self.release_idle_process(session.process);
        }
    }

    /// Stops watching a process that has no session.
    pub(super) fn release_idle_process(&mut self, id: u64) {
        if self.processes.get(id).is_some_and(|p| p.sessions.is_empty())
            && let Some(process) = self.processes.remove(id)
        {
            let _ = self.poller.remove(process.pidfd());
        }
    }
}
