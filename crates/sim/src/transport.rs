//! Sockets: two streams of frames, each in order, delivered late and in pieces.

use crate::failure::{Checked, Checker, fail};
use crate::heap::Happening;
use crate::world::World;
use orbitkv_wire::{FrameReader, ToClient, ToManager, write_frame};
use std::collections::VecDeque;

/// What waits in a stream.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// One direction of a socket.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    pieces: VecDeque<Piece>,
    /// When the last piece arrives. Later ones do not overtake it.
    last_us: u64,
    pub(crate) reader: FrameReader,
}

impl Pipe {
    /// When everything sent so far has arrived.
    pub(crate) fn drained_us(&self) -> u64 {
        self.last_us
    }
}

/// A connection of a client.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) client: usize,
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    /// The manager reads and writes it.
    pub(crate) manager_open: bool,
    /// The client reads and writes it.
    pub(crate) client_open: bool,
    /// Session and epoch once the manager has accepted the hello.
    pub(crate) session: u64,
    pub(crate) epoch: u32,
    /// A hello that the client itself does not mean: an older epoch, or a stranger.
    pub(crate) ghost: bool,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl World {
    /// Sends a frame on a client's connection; nothing without one.
    pub(crate) fn send_up(
        &mut self,
        client: usize,
        (operation, revision): (u64, u32),
        message: &ToManager<'_>,
    ) {
        let known = &self.clients[client];
        let (Some(link), Some(session)) = (known.link, known.session) else {
            return;
        };
        let ids = (session, known.epoch, operation, revision);
        let _ = self.send_up_on(link, ids, message);
    }

    /// As [`World::send_up`], on a connection that may not be welcome yet.
    pub(crate) fn send_up_on(
        &mut self,
        link: usize,
        ids: (u64, u32, u64, u32),
        message: &ToManager<'_>,
    ) -> Checked {
        self.note(|| format!("  link {link} >> {message:?} op {} rev {}", ids.2, ids.3));
        let (mut payload, mut frame) = (Vec::new(), Vec::new());
        message.encode(&mut payload);
        if let Err(error) = write_frame(&mut frame, message.kind(), ids, &payload) {
            return fail(Checker::Protocol, format!("a client cannot send {message:?}: {error}"));
        }
        self.post(link, Way::Up, frame);
        Ok(())
    }

    /// Sends a frame to a client.
    pub(crate) fn send_down(
        &mut self,
        link: usize,
        (operation, revision): (u64, u32),
        message: &ToClient<'_>,
    ) -> Checked {
        let (session, epoch) = (self.links[link].session, self.links[link].epoch);
        self.note(|| format!("  link {link} << {message:?} op {operation} rev {revision}"));
        let (mut payload, mut frame) = (Vec::new(), Vec::new());
        message.encode(&mut payload);
        let ids = (session, epoch, operation, revision);
        if let Err(error) = write_frame(&mut frame, message.kind(), ids, &payload) {
            return fail(Checker::Protocol, format!("the manager cannot send {message:?}: {error}"));
        }
        self.post(link, Way::Down, frame);
        Ok(())
    }

    fn post(&mut self, link: usize, way: Way, mut frame: Vec<u8>) {
        while self.plan.chunked && frame.len() > 1 && self.rng.chance(60) {
            let rest = frame.split_off(1 + self.rng.index(frame.len() - 1));
            self.put(link, way, Piece::Bytes(frame), 0);
            frame = rest;
        }
        self.put(link, way, Piece::Bytes(frame), 0);
    }

    fn put(&mut self, link: usize, way: Way, piece: Piece, extra_us: u64) {
        let delay = self.rng.range(1, self.plan.delay_us) + extra_us;
        let known = &mut self.links[link];
        let pipe = match way {
            Way::Up => &mut known.up,
            Way::Down => &mut known.down,
        };
        pipe.pieces.push_back(piece);
        pipe.last_us = pipe.last_us.max(self.now_us + delay);
        let what = match way {
            Way::Up => Happening::Up { link },
            Way::Down => Happening::Down { link },
        };
        self.heap.push(pipe.last_us, what);
    }

    /// The client's side is gone; the manager sees it later.
    pub(crate) fn close_by_client(&mut self, link: usize, extra_us: u64) {
        if std::mem::replace(&mut self.links[link].client_open, false) {
            self.put(link, Way::Up, Piece::End, extra_us);
        }
    }

    /// The manager closes; the client sees it after what was sent before.
    pub(crate) fn close_by_manager(&mut self, link: usize) {
        if std::mem::replace(&mut self.links[link].manager_open, false) {
            self.put(link, Way::Down, Piece::End, 0);
        }
    }

    /// A piece reaches the manager.
    pub(crate) fn arrive_up(&mut self, link: usize) -> Checked {
        let Some(piece) = self.links[link].up.pieces.pop_front() else {
            return Ok(());
        };
        if !self.links[link].manager_open {
            return Ok(());
        }
        let Piece::Bytes(bytes) = piece else {
            return self.connection_ended(link);
        };
        let mut reader = std::mem::take(&mut self.links[link].up.reader);
        reader.push(&bytes);
        while self.links[link].manager_open {
            match reader.next_frame() {
                Ok(None) => break,
                Ok(Some((header, kind, payload))) => self.manager_frame(link, &header, kind, payload)?,
                Err(error) => return fail(Checker::Protocol, format!("a client's stream broke: {error}")),
            }
        }
        self.links[link].up.reader = reader;
        Ok(())
    }

    /// A piece reaches a client. A stopped process reads it when it runs again.
    pub(crate) fn arrive_down(&mut self, link: usize) -> Checked {
        let process = self.clients[self.links[link].client].process;
        let until = self.processes[process].stopped_until_us;
        if until > self.now_us {
            self.heap.push(until, Happening::Down { link });
            return Ok(());
        }
        let Some(piece) = self.links[link].down.pieces.pop_front() else {
            return Ok(());
        };
        if !self.links[link].client_open {
            return Ok(());
        }
        let Piece::Bytes(bytes) = piece else {
            self.lose_link(link, 0);
            return Ok(());
        };
        let mut reader = std::mem::take(&mut self.links[link].down.reader);
        reader.push(&bytes);
        while self.links[link].client_open {
            match reader.next_frame() {
                Ok(None) => break,
                Ok(Some((header, kind, payload))) => self.client_frame(link, &header, kind, payload)?,
                Err(error) => return fail(Checker::Protocol, format!("the manager's stream broke: {error}")),
            }
        }
        self.links[link].down.reader = reader;
        Ok(())
    }
}
