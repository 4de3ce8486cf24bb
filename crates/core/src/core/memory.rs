//! Segments: grown on demand within the pool, shared with the workers of their shard.

use super::{Core, Outcome};
use crate::slots::Class;
use crate::{Effect, Mark, NamespaceId, SegmentId, SessionId, ShardId};

/// After a segment could not be had, growth rests this long.
const GROW_REST_MS: u64 = 1_000;
/// Segments of one class that are on their way at once.
const MAX_GROWING: usize = 16;
/// Free slots that savers find are at least this part of a class's slots: a pool that is being filled for the first time
/// grows by as much at a time.
const AHEAD_PART: usize = 8;

impl Core {
    /// Asks for a segment of a class unless one is on its way, if the pool has room. Returns whether one is.
    pub(super) fn grow(&mut self, class: Class, effects: &mut Vec<Effect>) -> bool {
        self.slots.tally(class).growing > 0 || self.grow_by_one(class, effects)
    }

    /// Asks for one more segment of a class: whoever was just told to wait is not alone, or wants more than one holds.
    pub(super) fn grow_more(&mut self, class: Class, effects: &mut Vec<Effect>) {
        if self.slots.tally(class).growing < MAX_GROWING {
            self.grow_by_one(class, effects);
        }
    }

    fn grow_by_one(&mut self, class: Class, effects: &mut Vec<Effect>) -> bool {
        let room = self.config.pool_bytes - self.slots.bytes;
        let bytes = self.config.segment_bytes.max(class.slot_bytes).min(room) / 4096 * 4096;
        if bytes < class.slot_bytes || self.now < self.grow_after {
            return false;
        }
        let segment = self.slots.grow(class, bytes);
        let Class { namespace, shard, slot_bytes } = class;
        effects.push(Effect::GrowSegment { segment, namespace, shard, slot_bytes, bytes });
        true
    }

    /// A worker's first segments are made when it connects, so that its probe and first saves find them.
    pub(super) fn grow_first(&mut self, session: SessionId, effects: &mut Vec<Effect>) {
        for class in self.classes_of(session) {
            if !self.slots.has(class) {
                self.grow(class, effects);
            }
        }
    }

    /// Asks for the next segment when a quarter of one is left: making one takes longer than savers wait. Where pages
    /// need no other class as well (`alone`), also when less than [`AHEAD_PART`] says is left or on its way.
    pub(super) fn grow_ahead(&mut self, class: Class, alone: bool, effects: &mut Vec<Effect>) {
        let each = usize::try_from(self.config.segment_bytes / class.slot_bytes).unwrap_or(usize::MAX);
        let tally = self.slots.tally(class);
        let quarter = each.div_ceil(4);
        if !alone {
            if self.slots.free_slots(class, quarter) < quarter {
                self.grow(class, effects);
            }
            return;
        }
        let least = quarter.max(tally.slots / AHEAD_PART);
        let coming = tally.growing.saturating_mul(each);
        if coming < least && self.slots.free_slots(class, least - coming) < least - coming {
            self.grow_more(class, effects);
        }
    }

    /// The classes of a worker's shards.
    fn classes_of(&self, session: SessionId) -> Vec<Class> {
        let Some(known) = self.sessions.get(&session) else {
            return Vec::new();
        };
        let Some(instance) = self.instances.get(&known.instance) else {
            return Vec::new();
        };
        let Some(rank) = known.role.rank() else {
            return Vec::new();
        };
        let namespace = instance.namespace;
        let shard = |shards: u16| ShardId(rank % shards);
        instance
            .shapes()
            .map(|s| Class { namespace, shard: shard(s.shards), slot_bytes: s.slot_bytes })
            .collect()
    }

    /// A worker gets every segment of its shards.
    pub(super) fn share_segments(&self, session: SessionId, effects: &mut Vec<Effect>) {
        let classes = self.classes_of(session);
        let mine = self.slots.segments.iter().filter(|(_, s)| s.ready && classes.contains(&s.class));
        effects.extend(mine.map(|(&segment, _)| Effect::ShareSegment { segment, session }));
    }

    pub(super) fn segment_ready(&mut self, segment: SegmentId, effects: &mut Vec<Effect>) -> Option<Outcome> {
        let class = self.slots.ready(segment, self.now)?;
        let workers = self.instances.values().flat_map(|i| i.workers.values());
        let open: Vec<SessionId> = workers.copied().collect();
        for session in open {
            if self.classes_of(session).contains(&class) {
                effects.push(Effect::ShareSegment { segment, session });
            }
        }
        self.retry_starved(effects);
        None
    }

    pub(super) fn segment_failed(
        &mut self,
        segment: SegmentId,
        effects: &mut Vec<Effect>,
    ) -> Option<Outcome> {
        let grows = self.slots.segments.get(&segment).is_some_and(|s| !s.ready);
        if grows {
            self.mark(Mark::SegmentFailed);
            self.grow_after = self.now.plus_ms(GROW_REST_MS);
            self.drop_segment(segment);
            self.retry_starved(effects);
        }
        None
    }

    /// Takes an empty segment out of the books.
    pub(super) fn drop_segment(&mut self, segment: SegmentId) {
        let namespace: Option<NamespaceId> = self.slots.segments.get(&segment).map(|s| s.class.namespace);
        self.slots.remove(segment);
        if let Some(namespace) = namespace {
            self.retire_namespace(namespace);
        }
    }
}
