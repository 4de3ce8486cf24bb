//! What every client does: connect, resume, read frames, lose its socket.

use crate::engine::Client;
use crate::failure::{Checked, Checker, ensure, fail};
use crate::heap::Happening;
use crate::manager::BOOT;
use crate::translate;
use crate::transport::Link;
use crate::world::World;
use orbitkv_core::SessionSpec;
use orbitkv_wire::{Header, Kind, Resume, ToClient, ToManager};

/// Longest pause before the next attempt to connect.
const RETRY_US: u64 = 30_000;

impl World {
    fn spec(&self, client: usize) -> SessionSpec {
        let known = &self.clients[client];
        let plan = &self.engines[known.engine].plan;
        SessionSpec {
            role: known.role,
            instance: known.instance,
            world_size: plan.world_size,
            namespace: plan.namespace,
            groups: plan.groups.clone(),
            hash_tokens: 0,
        }
    }

    /// Whether threads of the client's process run now.
    pub(crate) fn runs(&self, client: usize) -> bool {
        self.processes[self.clients[client].process].alive
    }

    /// The time until which its process is stopped, if it is.
    pub(crate) fn stopped_until(&self, client: usize) -> Option<u64> {
        let until = self.processes[self.clients[client].process].stopped_until_us;
        (until > self.now_us).then_some(until)
    }

    /// Says hello on a new socket.
    pub(crate) fn connect(&mut self, client: usize) -> Checked {
        if let Some(until) = self.stopped_until(client) {
            self.heap.push(until, Happening::Connect { client });
            return Ok(());
        }
        self.clients[client].connecting = false;
        if !self.runs(client) || self.clients[client].link.is_some() {
            return Ok(());
        }
        let copies = self.copies.values().any(|c| c.client == client);
        let known = &mut self.clients[client];
        known.epoch += 1;
        let epoch = known.epoch;
        let resume = known.last_session.map(|session| Resume { session, copies_ended: !copies });
        if !copies && let Some(last) = known.last_session {
            known.past.retain(|past| *past != last);
        }
        known.resumes = [known.resumes[1].take(), resume.clone()];
        let link = self.open_link(client, epoch, false, resume)?;
        self.clients[client].link = Some(link);
        if self.rng.chance(self.plan.faults.socket) {
            // Lost before the welcome: the manager may have opened a session that nobody ever hears of.
            let late = self.rng.below(100_000);
            self.lose_link(link, late);
        }
        Ok(())
    }

    /// Opens a socket and sends a hello of that epoch.
    pub(crate) fn open_link(
        &mut self,
        client: usize,
        epoch: u32,
        ghost: bool,
        resume: Option<Resume>,
    ) -> Result<usize, crate::failure::Failure> {
        let link = self.links.len();
        let open = Link { client, manager_open: true, client_open: true, ghost, ..Link::default() };
        self.links.push(open);
        let mut hello = translate::hello(self.clients[client].id, epoch, &self.spec(client));
        hello.resume = resume;
        match hello.encode() {
            Ok(json) => self.send_up_on(link, (0, 0, 0, 0), &ToManager::Hello(&json))?,
            Err(error) => return fail(Checker::Protocol, format!("hello: {error}")),
        }
        Ok(link)
    }

    /// The client's side of a socket is gone. What it has started goes on.
    pub(crate) fn lose_link(&mut self, link: usize, extra_us: u64) {
        self.close_by_client(link, extra_us);
        let client = self.links[link].client;
        if self.clients[client].link != Some(link) {
            return;
        }
        let known = &mut self.clients[client];
        known.link = None;
        if let Some(session) = known.session.take() {
            known.last_session = Some(session);
            known.past.push(session);
        }
        let said = std::mem::take(&mut known.said);
        known.past.extend(said);
        self.desk_lost(client);
        self.hands_lost(client);
        self.connect_soon(client);
    }

    pub(crate) fn connect_soon(&mut self, client: usize) {
        if self.runs(client) && !std::mem::replace(&mut self.clients[client].connecting, true) {
            let at = self.now_us + self.rng.range(1, RETRY_US);
            self.heap.push(at, Happening::Connect { client });
        }
    }

    /// A whole frame of the manager.
    pub(crate) fn client_frame(
        &mut self,
        link: usize,
        header: &Header,
        kind: Kind,
        payload: &[u8],
    ) -> Checked {
        let message = match ToClient::decode(kind, payload) {
            Ok(message) => message,
            Err(error) => return fail(Checker::Protocol, format!("{kind:?} does not decode: {error}")),
        };
        let client = self.links[link].client;
        match message {
            ToClient::Rejected { .. } => {
                self.lose_link(link, 0);
                return Ok(());
            }
            ToClient::Welcome { boot } => {
                ensure(boot == BOOT, Checker::Protocol, || format!("boot {boot:#x}"))?;
                return self.welcome(link, header.session.get());
            }
            _ => {}
        }
        if self.links[link].ghost {
            return Ok(());
        }
        let expected = self.clients[client].session;
        ensure(expected == Some(header.session.get()), Checker::Protocol, || {
            format!("{message:?} of session {} came to session {expected:?}", header.session.get())
        })?;
        let ids = (header.operation.get(), header.revision.get());
        let answer = matches!(kind, Kind::Operation | Kind::Granted | Kind::Refused);
        let of_probe = self.probe_operation(client) == Some(ids.0);
        if answer && !of_probe && self.rng.chance(self.plan.faults.lost_reply) {
            self.note(|| "    the reply is lost".into());
            return Ok(());
        }
        match message {
            ToClient::Fence { scheduler } => {
                self.fence(client, scheduler);
                Ok(())
            }
            _ if of_probe => self.probe_answer(client, &message),
            _ => self.desk_answer(client, ids, &message),
        }
    }

    fn welcome(&mut self, link: usize, session: u64) -> Checked {
        let client = self.links[link].client;
        if self.links[link].ghost {
            // Nobody meant this session. It ends, and the end of its copies is attested with the others.
            self.clients[client].past.push(session);
            self.close_by_client(link, 0);
            self.attest_past(client);
            return Ok(());
        }
        let now = self.now_us;
        let known = &mut self.clients[client];
        known.session = Some(session);
        known.since_us = now;
        self.attest_past(client);
        self.hands_welcome(client);
        Ok(())
    }

    /// Says of every earlier session without running copies that they have ended.
    pub(crate) fn attest_past(&mut self, client: usize) {
        let Client { session: Some(_), past, .. } = &self.clients[client] else {
            return;
        };
        for session in past.clone() {
            let copies = self.copies.values().any(|c| c.client == client && c.session == session);
            if !copies {
                self.clients[client].past.retain(|past| *past != session);
                self.clients[client].said.push(session);
                self.send_up(client, (0, 0), &ToManager::CopiesEnded { session });
            }
        }
    }
}
