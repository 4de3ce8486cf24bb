//! A world of one seed: a clock, a heap of events, the core, and everybody around it.

use crate::content::Memory;
use crate::disk::Disk;
use crate::engine::{Client, Copy, Engine, Process};
use crate::failure::{Checked, Checker, Failure, fail};
use crate::heap::{Happening, Heap};
use crate::manager::ManagerSession;
use crate::model::Model;
use crate::plan::Plan;
use crate::rng::{Rng, mix};
use crate::transport::Link;
use crate::universe::Universe;
use orbitkv_core::{Core, Event, FoundShard, Mark, Plant, SlotRef};
use std::collections::{BTreeMap, BTreeSet};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Events of one seed before its faults stop.
    pub events: u64,
    /// Defect to plant; needs the `plant` feature.
    pub plant: Option<Plant>,
    /// Keep a history.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { events: 700, plant: None, trace: false }
    }
}

/// What a seed came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The first failed check.
    pub failure: Option<Failure>,
    /// Events that happened.
    pub events: u64,
    /// Restored shards of pages compared with what they must hold.
    pub compared: u64,
    /// Hash of the whole history.
    pub history: u64,
    /// Guards of the core that were reached.
    pub marks: Vec<Mark>,
    /// The history, one line an event, if it was asked for.
    pub trace: Vec<String>,
}

/// Where a world is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Anything may go wrong.
    Faulty,
    /// Nothing goes wrong any more, and nobody starts anything new: everything must end until then.
    Settling { until_us: u64 },
    /// Each engine in turn saves and restores something new.
    Exam { engine: usize, until_us: u64 },
    /// All is well.
    Over,
}

/// Everything must have ended this long after the last fault.
const SETTLE_US: u64 = 120_000_000;

/// See the module.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now_us: u64,
    pub(crate) heap: Heap,
    pub(crate) stage: Stage,
    pub(crate) universe: Universe,
    pub(crate) core: Core,
    pub(crate) model: Model,
    pub(crate) memory: Memory,
    pub(crate) disk: Disk,
    /// What an earlier run has left and nobody has told of; the next one last.
    pub(crate) findings: Vec<FoundShard>,
    /// Checks of memory that have not ended: the checksum of each slot.
    pub(crate) scrubs: BTreeMap<SlotRef, u64>,
    /// Slots in which a bit has rotted.
    pub(crate) rotten: BTreeSet<SlotRef>,
    pub(crate) engines: Vec<Engine>,
    pub(crate) processes: Vec<Process>,
    pub(crate) clients: Vec<Client>,
    pub(crate) links: Vec<Link>,
    pub(crate) sessions: BTreeMap<u64, ManagerSession>,
    pub(crate) last_session: u64,
    pub(crate) copies: BTreeMap<u64, Copy>,
    pub(crate) next_copy: u64,
    /// Numbers for clients, instances and pages that exist once.
    pub(crate) unique: u64,
    /// When the core is woken next.
    pub(crate) timer_us: Option<u64>,
    /// Events between two audits of the whole core.
    pub(crate) audit_every: u64,
    pub(crate) steps: u64,
    pub(crate) events: u64,
    pub(crate) compared: u64,
    history: u64,
    trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> Result<Self, Failure> {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng, options.plant);
        let core = match Core::new(plan.config.clone()) {
            Ok(core) => core,
            Err(error) => return fail(Checker::Model, format!("the plan is refused: {error}")),
        };
        let universe = Universe::new(&mut rng, plan.chains, plan.chain_pages);
        let slots = plan.config.pool_bytes / 8192;
        let mut world = Self {
            model: Model::new(&plan.config),
            universe,
            core,
            rng,
            now_us: 1_000,
            heap: Heap::default(),
            stage: Stage::Faulty,
            memory: Memory::default(),
            disk: Disk::default(),
            findings: Vec::new(),
            scrubs: BTreeMap::new(),
            rotten: BTreeSet::new(),
            engines: Vec::new(),
            processes: Vec::new(),
            clients: Vec::new(),
            links: Vec::new(),
            sessions: BTreeMap::new(),
            last_session: 0,
            copies: BTreeMap::new(),
            next_copy: 0,
            unique: 0,
            timer_us: None,
            // Cost of an audit grows with the pool: every step of a small one, samples of a large one.
            audit_every: 1 + slots / 48,
            steps: 0,
            events: 0,
            compared: 0,
            history: seed,
            trace: options.trace.then(Vec::new),
            plan,
        };
        for plan in world.plan.engines.clone() {
            let engine = world.engines.len();
            world.engines.push(Engine { plan, scheduler: None, workers: Vec::new(), up: false });
            let at = world.now_us + world.rng.below(50_000);
            world.heap.push(at, Happening::StartEngine { engine });
        }
        world.lay_out_the_past();
        if world.plan.scrub_us > 0 {
            world.heap.push(world.now_us + world.plan.scrub_us, Happening::Scrub);
        }
        Ok(world)
    }

    /// Adds a line to the history, if one is kept.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    pub(crate) fn unique(&mut self) -> u64 {
        self.unique += 1;
        self.unique
    }

    /// Faults are over.
    pub(crate) fn quiet(&self) -> bool {
        self.stage != Stage::Faulty
    }

    /// Lets everything happen until all is well, or something is not.
    pub(crate) fn run(&mut self, options: &Options) -> Checked {
        while self.stage != Stage::Over {
            let Some((at_us, what)) = self.heap.pop() else {
                return fail(Checker::Liveness, "nothing is going to happen any more");
            };
            self.now_us = self.now_us.max(at_us);
            self.events += 1;
            self.remember(what.code());
            let (event, now) = (self.events, self.now_us);
            self.note(|| format!("{event:>6} {:>10}.{:03} ms  {what:?}", now / 1_000, now % 1_000));
            self.happen(what)?;
            self.move_stage(options)?;
        }
        Ok(())
    }

    fn remember(&mut self, code: u64) {
        let books = self.core.used_bytes() ^ self.core.ledger().reserved_bytes() << 20;
        self.history = mix(self.history ^ mix(code ^ self.now_us << 8) ^ books);
    }

    fn happen(&mut self, what: Happening) -> Checked {
        match what {
            Happening::Up { link } => self.arrive_up(link),
            Happening::Down { link } => self.arrive_down(link),
            Happening::Timer => self.timer(),
            Happening::StartEngine { engine } => {
                self.start_engine(engine);
                Ok(())
            }
            Happening::Kill { process } => {
                self.kill(process);
                Ok(())
            }
            Happening::Gone { process } => self.process_gone(process),
            Happening::Connect { client } => self.connect(client),
            Happening::Turn { client } => self.turn(client),
            Happening::Probe { client } => self.probe_turn(client),
            Happening::Dispatch { client, ticket } => self.take_ticket(client, &ticket),
            Happening::Told { client, session, operation, rank, restored } => {
                self.told(client, session, operation, rank, restored);
                Ok(())
            }
            Happening::Beat { copy } => self.beat(copy),
            Happening::Written { slot } => self.write_ends(slot),
            Happening::ReadEnds { slot } => self.read_ends(slot),
            Happening::Finding => self.find_one(),
            Happening::Scrub => self.scrub(),
            Happening::ScrubEnds { slot } => self.scrub_ends(slot),
            Happening::Grown { segment, works } => self.grown(segment, works),
        }
    }

    /// From faults to rest to the exam to the end.
    fn move_stage(&mut self, options: &Options) -> Checked {
        match self.stage {
            Stage::Faulty if self.events >= options.events => {
                self.note(|| "faults stop".into());
                self.plan.faults.cease();
                if self.plan.config.tier {
                    self.feed(Event::TierState { reads: true, writes: true })?;
                }
                self.stage = Stage::Settling { until_us: self.now_us + SETTLE_US };
                Ok(())
            }
            Stage::Settling { until_us } => {
                if self.settled() {
                    self.note(|| "everything has ended".into());
                    self.check_rest()?;
                    self.stage = Stage::Exam { engine: 0, until_us: self.now_us + SETTLE_US };
                } else if self.now_us > until_us {
                    return fail(Checker::Liveness, self.unsettled());
                }
                Ok(())
            }
            Stage::Exam { engine, until_us } => {
                if self.passed(engine) {
                    let next = engine + 1;
                    let until_us = self.now_us + SETTLE_US;
                    let over = next == self.engines.len();
                    self.stage = if over { Stage::Over } else { Stage::Exam { engine: next, until_us } };
                } else if self.now_us > until_us {
                    let words =
                        format!("engine {engine} cannot save and restore any more: {}", self.unsettled());
                    return fail(Checker::Liveness, words);
                }
                Ok(())
            }
            Stage::Faulty | Stage::Over => Ok(()),
        }
    }

    /// What is left of the run.
    pub(crate) fn outcome(self, result: Checked) -> Outcome {
        Outcome {
            failure: result.err(),
            events: self.events,
            compared: self.compared,
            history: self.history,
            marks: Mark::ALL.iter().copied().filter(|mark| self.core.marked(*mark)).collect(),
            trace: self.trace.unwrap_or_default(),
        }
    }
}
