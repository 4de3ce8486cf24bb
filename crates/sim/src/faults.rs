//! Engines come up and go down, and everything else that goes wrong from outside.

use crate::engine::{Client, Process};
use crate::failure::Checked;
use crate::heap::Happening;
use crate::plan::Topology;
use crate::scheduler::Desk;
use crate::worker::Hands;
use crate::world::World;
use orbitkv_core::{Event, InstanceId, Role, SlotState};

impl World {
    /// New processes with new clients and a new instance token.
    pub(crate) fn start_engine(&mut self, engine: usize) {
        let instance = InstanceId(u128::from(self.unique()));
        let plan = self.engines[engine].plan.clone();
        let first = self.new_process();
        self.engines[engine].up = true;
        self.engines[engine].workers.clear();
        let role = if plan.topology == Topology::Solo { Role::Solo } else { Role::Scheduler };
        let scheduler = self.new_client(engine, first, instance, role);
        self.engines[engine].scheduler = Some(scheduler);
        self.connect_soon(scheduler);
        if plan.topology == Topology::Solo {
            self.engines[engine].workers.push(scheduler);
        }
        for rank in 0..plan.world_size {
            let process = match plan.topology {
                Topology::Solo => break,
                Topology::Joint => first,
                Topology::Split => self.new_process(),
            };
            let worker = self.new_client(engine, process, instance, Role::Worker { rank });
            self.engines[engine].workers.push(worker);
            self.connect_soon(worker);
        }
        let at = self.now_us + self.plan.turn_us;
        self.heap.push(at, Happening::Turn { client: scheduler });
    }

    fn new_process(&mut self) -> usize {
        self.processes.push(Process {
            alive: true,
            stopped_until_us: 0,
            dma_until_us: u64::MAX,
            gone: false,
        });
        self.processes.len() - 1
    }

    fn new_client(&mut self, engine: usize, process: usize, instance: InstanceId, role: Role) -> usize {
        let client = self.clients.len();
        let id = u128::from(self.unique());
        self.clients.push(Client {
            id,
            process,
            engine,
            instance,
            role,
            epoch: 0,
            link: None,
            session: None,
            since_us: 0,
            last_session: None,
            past: Vec::new(),
            said: Vec::new(),
            next_operation: 0,
            desk: role.schedules().then(Desk::default),
            hands: role.rank().map(Hands::new),
            resumes: [None, None],
            connecting: false,
        });
        client
    }

    /// Everything of an engine dies, one process after the other, and comes up again some time later.
    fn kill_engine(&mut self, engine: usize) {
        if !std::mem::replace(&mut self.engines[engine].up, false) {
            return;
        }
        let mut processes: Vec<usize> =
            self.engines[engine].workers.iter().map(|c| self.clients[*c].process).collect();
        processes.extend(self.engines[engine].scheduler.map(|c| self.clients[c].process));
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            let at = self.now_us + self.rng.below(40_000);
            self.heap.push(at, Happening::Kill { process });
        }
        let at = self.now_us + self.rng.range(20_000, 400_000);
        self.heap.push(at, Happening::StartEngine { engine });
    }

    /// The process dies. Its sockets close, at once or later; its copies end later still.
    pub(crate) fn kill(&mut self, process: usize) {
        let longest = [1_000, self.plan.beat_us, self.plan.slow_beat_us * 2][self.rng.index(3)];
        let dma_until_us = self.now_us + self.rng.below(longest);
        self.processes[process].alive = false;
        self.processes[process].dma_until_us = dma_until_us;
        let late = if self.rng.chance(50) { 0 } else { self.rng.below(200_000) };
        for link in 0..self.links.len() {
            let client = self.links[link].client;
            if self.clients[client].process == process && self.links[link].client_open {
                self.close_by_client(link, late);
                self.clients[client].link = None;
                self.clients[client].session = None;
            }
        }
        let at = dma_until_us + 1 + self.rng.below(50_000);
        self.heap.push(at, Happening::Gone { process });
    }

    /// Perhaps something goes wrong now, at the turn of that scheduler.
    pub(crate) fn misfortune(&mut self, client: usize) -> Checked {
        let faults = self.plan.faults;
        let engine = self.clients[client].engine;
        if self.rng.chance(faults.kill) {
            self.kill_engine(engine);
        }
        if self.rng.chance(faults.socket) {
            self.lose_a_socket(engine);
        }
        if self.rng.chance(faults.stop) {
            let member = self.member(engine);
            let process = self.clients[member].process;
            self.processes[process].stopped_until_us = self.now_us + self.rng.below(600_000);
        }
        if self.rng.chance(faults.disk_rot) {
            self.disk_rots()?;
        }
        if self.rng.chance(faults.rot) {
            self.rot();
        }
        if self.rng.chance(faults.hello) {
            self.strange_hello(engine)?;
        }
        if self.rng.chance(faults.admin) {
            self.feed(Event::DropUnleased)?;
        }
        if self.rng.chance(faults.jump) {
            self.now_us += self.rng.below(5_000_000);
        }
        Ok(())
    }

    /// A client of the engine.
    fn member(&mut self, engine: usize) -> usize {
        let mut all = self.engines[engine].workers.clone();
        all.extend(self.engines[engine].scheduler);
        self.rng.pick(&all).copied().unwrap_or(0)
    }

    fn lose_a_socket(&mut self, engine: usize) {
        let client = self.member(engine);
        if let Some(link) = self.clients[client].link.filter(|_| self.runs(client)) {
            let late = if self.rng.chance(50) { 0 } else { self.rng.below(100_000) };
            self.lose_link(link, late);
        }
    }

    /// A bit of a committed page flips.
    fn rot(&mut self) {
        let resident: Vec<_> =
            self.core.slots().filter(|s| s.state == SlotState::Resident).map(|s| s.slot).collect();
        if let Some(&at) = self.rng.pick(&resident) {
            let (stripe, flip) = (self.rng.index(crate::content::STRIPES), 1 << self.rng.below(64));
            let word = self.memory.read(at).map_or(0, |w| w[stripe]);
            self.memory.write(at, stripe, word ^ flip);
            self.rotten.insert(at);
            self.note(|| format!("  a bit rots in {at:?}"));
        }
    }

    /// A hello that must be refused while the real client is there: an old epoch, or a second scheduler.
    fn strange_hello(&mut self, engine: usize) -> Checked {
        let client = self.member(engine);
        if !self.runs(client) {
            return Ok(());
        }
        if self.rng.chance(50) {
            let epoch = self.clients[client].epoch.saturating_sub(1);
            // No client ever uses an epoch twice.
            if epoch == 0 {
                return Ok(());
            }
            // The last but one hello, on its way for so long that the last one overtook it.
            let resume = self.clients[client].resumes[0].clone();
            return self.open_link(client, epoch, true, resume).map(drop);
        }
        let Some(scheduler) = self.engines[engine].scheduler else {
            return Ok(());
        };
        let Client { process, instance, role, .. } = self.clients[scheduler];
        if role != Role::Scheduler {
            return Ok(());
        }
        // It never takes part: this one hello is all it ever sends.
        let stranger = self.new_client(engine, process, instance, role);
        self.open_link(stranger, 1, true, None).map(drop)
    }
}
