//! After all faults: each engine saves a fresh page of every group and restores it.

use crate::scheduler::{Ask, AskState, Desk};
use crate::universe::block_hash;
use crate::world::{Stage, World};
use orbitkv_core::{BlockHash, GroupId};

/// Numbers of hashes that no chain of the universe has.
const FRESH: u64 = 1 << 40;

/// How far an engine has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exam {
    /// Groups that are through.
    passed: usize,
    step: Step,
}

#[derive(Clone, Debug, Default)]
enum Step {
    #[default]
    Begin,
    /// A reservation is out.
    Saving { operation: u64, hash: BlockHash },
    /// Saved, or so the engine hopes: asks until the page is a hit.
    Seeking { operation: Option<u64>, hash: BlockHash, tries: u32 },
}

/// Queries after which the page is taken for evicted or lost, and saved again.
const TRIES: u32 = 200;

impl Exam {
    /// The connection was lost; what was under way is void.
    pub(crate) fn restart(&mut self) {
        self.step = Step::Begin;
    }
}

impl World {
    /// Whether that engine has saved and restored a page of every group.
    pub(crate) fn passed(&self, engine: usize) -> bool {
        let known = &self.engines[engine];
        let desk = known.scheduler.and_then(|client| self.clients[client].desk.as_ref());
        desk.is_some_and(|desk| desk.exam.passed >= known.plan.groups.len())
    }

    /// A turn of the engine whose exam it is. False for all others.
    pub(crate) fn exam_turn(&mut self, client: usize) -> bool {
        let engine = self.clients[client].engine;
        let mine = matches!(self.stage, Stage::Exam { engine: now, .. } if now == engine);
        if !mine || self.passed(engine) {
            return false;
        }
        let Some(Desk { exam, .. }) = self.clients[client].desk.clone() else {
            return false;
        };
        let groups = &self.engines[engine].plan.groups;
        let group = groups.get(exam.passed).map_or(GroupId(0), |g| g.group);
        let step = match exam.step {
            Step::Begin => {
                let hash = block_hash(FRESH + self.unique());
                let operation = self.begin_ask(client, self.exam_ask(group, hash, true));
                Step::Saving { operation, hash }
            }
            Step::Saving { operation, hash } => match self.ask(client, operation).map(|a| a.state.clone()) {
                Some(AskState::Granted { .. }) => {
                    self.hand_save(client, operation);
                    Step::Seeking { operation: None, hash, tries: 0 }
                }
                Some(_) => Step::Saving { operation, hash },
                // Busy, or refused for now.
                None => Step::Begin,
            },
            Step::Seeking { tries: TRIES, .. } => Step::Begin,
            Step::Seeking { operation, hash, tries } => {
                let state = operation.and_then(|o| self.ask(client, o).map(|a| a.state.clone()));
                match (state, operation) {
                    (Some(AskState::Ready { .. }), Some(ready)) => {
                        self.hand_restore(client, ready);
                        Step::Seeking { operation, hash, tries }
                    }
                    (Some(_), _) => Step::Seeking { operation, hash, tries },
                    (None, _) => {
                        let operation = Some(self.begin_ask(client, self.exam_ask(group, hash, false)));
                        Step::Seeking { operation, hash, tries: tries + 1 }
                    }
                }
            }
        };
        if let Some(desk) = &mut self.clients[client].desk {
            desk.exam.step = step;
        }
        true
    }

    fn exam_ask(&self, group: GroupId, hash: BlockHash, save: bool) -> Ask {
        Ask {
            save,
            revision: 1,
            group,
            hashes: vec![hash],
            recovery: None,
            parent: None,
            first_depth: 0,
            deadline_ms: 0,
            rule: orbitkv_wire::QueryRule::default(),
            issued_us: self.now_us,
            abuses: 0,
            state: AskState::Asked,
        }
    }

    /// All workers have restored an operation.
    pub(crate) fn exam_restored(&mut self, client: usize, operation: u64, pages: u32) {
        let Some(desk) = &mut self.clients[client].desk else {
            return;
        };
        if let Step::Seeking { operation: Some(sought), .. } = desk.exam.step
            && sought == operation
            && pages == 1
        {
            desk.exam.passed += 1;
            desk.exam.step = Step::Begin;
        }
    }
}
