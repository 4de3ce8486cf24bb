//! The core, driven by bytes: sessions come and go, save, restore and break every rule on the way.

mod cast;
mod tier;
mod world;

use crate::bytes::Bytes;
use cast::{GROUP, group, hash};
use orbitkv_core::{BlockHash, Demand, Event, Evidence, GroupId, Mark, Mode, Recovery, SaveRequest, Ticket};
use world::World;

/// From here on an event is about the slower tier or about reading ahead.
const AHEAD: u8 = 200;
/// From here on an event is about boundaries.
const BOUNDARY: u8 = 248;
/// Most events of one input. The audit behind each costs more than the event.
const MAX_STEPS: usize = 2_000;

/// Input: two bytes that choose limits, then events: a byte that names the event, and a byte or two for
/// each thing it names. Sessions, operations and slots are mostly named by when they were last seen, so
/// that most events are about something.
///
/// The books are audited behind every event. At the end all sessions close, all processes exit, all reads and
/// writes end, and everything must be free.
pub fn steps(input: &[u8]) {
    marks_of_steps(input);
}

/// As [`steps`]; gives the rare things that the core went through.
pub fn marks_of_steps(input: &[u8]) -> Vec<Mark> {
    let mut bytes = Bytes::new(input);
    let mut world = World::new(bytes.u8(), bytes.u8());
    for _ in 0..MAX_STEPS {
        if bytes.is_empty() {
            break;
        }
        let event = bytes.u8();
        step(&mut world, event, &mut bytes);
    }
    world.end()
}

fn step(world: &mut World, event: u8, bytes: &mut Bytes<'_>) {
    if event >= BOUNDARY {
        return recover(world, event, bytes);
    }
    if event >= AHEAD {
        return step_ahead(world, event - AHEAD, bytes);
    }
    match event % 20 {
        0 => world.open(bytes.u8(), bytes.u8()),
        1 => {
            let session = world.session(bytes.u8());
            world.step(Event::SessionClosed { session });
        }
        2 => {
            let choice = bytes.u8();
            let evidence = if choice & 128 == 0 { Evidence::ProcessExit } else { Evidence::Attested };
            let session = world.session(choice & 127);
            world.step(Event::SessionGone { session, evidence });
        }
        3 => {
            let choice = bytes.u8();
            let session = world.session(choice & 127);
            world.step(Event::Attest { session, passed: choice & 128 == 0 });
        }
        4..=6 => query(world, bytes),
        7..=9 => reserve(world, bytes),
        10 => hand_out_or_end(world, bytes),
        11 => {
            let (session, ticket) = (world.session(bytes.u8()), world.ticket(bytes));
            world.step(Event::CopyDone { session, ticket });
        }
        12 => {
            let (session, (slot, _)) = (world.session(bytes.u8()), world.slot(bytes.u8()));
            world.step(Event::BadPage { session, slot });
        }
        13 | 14 => {
            let (session, (slot, hash)) = (world.session(bytes.u8()), world.slot(bytes.u8()));
            world.step(Event::Commit { session, slot, hash, crc: 42 });
        }
        15 => {
            let (session, (slot, _)) = (world.session(bytes.u8()), world.slot(bytes.u8()));
            world.step(Event::Abort { session, slot });
        }
        16 => {
            let (session, scheduler) = (world.session(bytes.u8()), world.session(bytes.u8()));
            world.step(Event::Fenced { session, scheduler });
        }
        17 => forget(world, bytes),
        18 => {
            let choice = bytes.u8();
            let segment = world.segment(choice & 127);
            let ready = choice & 128 == 0;
            world.step(if ready {
                Event::SegmentReady { segment }
            } else {
                Event::SegmentFailed { segment }
            });
        }
        _ => {
            world.wait(bytes.u8());
            world.step(Event::Tick);
        }
    }
}

/// A restore, a release or a cancel of some operation.
fn hand_out_or_end(world: &mut World, bytes: &mut Bytes<'_>) {
    let ticket = world.ticket(bytes);
    let Ticket { session, operation, revision } = ticket;
    let choice = bytes.u8();
    world.step(match choice % 3 {
        0 => {
            let (first, pages) = world.some_of(ticket, choice / 3);
            Event::Restore { session, operation, revision, first, pages }
        }
        1 => Event::Release { session, operation, revision },
        _ => Event::Cancel { session, operation, revision },
    });
}

fn step_ahead(world: &mut World, event: u8, bytes: &mut Bytes<'_>) {
    match event % 8 {
        0 | 1 => {
            let ended = world.tier.end_write(bytes.u8());
            world.step_if(ended);
        }
        2 | 3 => {
            let ended = world.tier.end_read(bytes.u8());
            world.step_if(ended);
        }
        4 => {
            let lost = world.tier.lose(bytes.u8());
            world.step_if(lost);
        }
        5 => {
            let Ticket { session, operation, revision } = world.ticket(bytes);
            world.step(Event::Keep { session, operation, revision });
        }
        6 => {
            // A query again: the claim, if it was a preparation.
            if let Some((ticket, pages, choice)) = world.asked(bytes.u8()) {
                ask(world, ticket, pages, choice & !MODE);
            }
        }
        _ => {
            let (slot, _) = world.slot(bytes.u8());
            let stray = world.tier.stray(slot, bytes);
            world.step_if(stray);
        }
    }
}

/// A chain of pages: where it starts, and up to 15 hashes.
fn chain(choice: u8) -> (u8, Vec<BlockHash>) {
    let (first, count) = (choice >> 4, choice & 15);
    (first, (first..first + count).map(hash).collect())
}

fn query(world: &mut World, bytes: &mut Bytes<'_>) {
    let (ticket, pages, choice) = (world.ticket(bytes), bytes.u8(), bytes.u8());
    world.note(ticket, pages, choice);
    ask(world, ticket, pages, choice);
}

/// Bits of a query that say what for.
const MODE: u8 = 0x18;

/// Bits of the last byte: 0 to 2 the group, 3 and 4 the mode (both: a demand of what is in memory), 5 all or nothing, 6 a deadline (as many
/// milliseconds as the byte says), 7 the full prefix is waited for.
fn ask(world: &mut World, ticket: Ticket, pages: u8, choice: u8) {
    let (_, hashes) = chain(pages);
    let mode = match choice & MODE {
        0x08 => Mode::Prepare,
        0x10 => Mode::WarmUp,
        _ => Mode::Demand,
    };
    let demand = Demand {
        deadline_ms: (choice & 64 != 0).then_some(u32::from(choice)),
        mode,
        strict: choice & 32 != 0,
        wait_full_prefix: choice & 128 != 0,
        memory_only: choice & MODE == MODE,
        ..Demand::prefix(group(choice), &hashes)
    };
    let Ticket { session, operation, revision } = ticket;
    world.step(Event::Query { session, operation, revision, demand });
}

/// From here on what is told is about the check of memory, not about the tier.
const SCRUB: u8 = 252;

/// What the tier says of itself.
fn told(world: &mut World, bytes: &mut Bytes<'_>) {
    let (what, choice) = (bytes.u8(), bytes.u8());
    match what % 4 {
        0 | 1 if what >= SCRUB => world.step(Event::Scrub { bytes: u64::from(choice) << 12 }),
        _ if what >= SCRUB => {
            let ended = world.tier.end_scrub(choice);
            world.step_if(ended);
        }
        0 => {
            let found = world.tier.find(choice);
            world.step(Event::Found(&found));
        }
        1 => {
            let moved = world.tier.relocate(choice);
            world.step_if(moved);
        }
        2 => world.step(Event::TierState { reads: choice & 1 != 0, writes: choice & 2 != 0 }),
        _ if choice & 128 != 0 => {
            let overdue = world.tier.take_long(choice);
            world.step_if(overdue);
        }
        _ => world.step(Event::FoundAll),
    }
}

/// A recovery, or a question for candidates. Bits of the last byte: 0 and 1 the start, 2 to 5 the end, in pages;
/// 6 and 7 what for.
fn recover(world: &mut World, event: u8, bytes: &mut Bytes<'_>) {
    if event % 4 == 3 {
        return told(world, bytes);
    }
    let Ticket { session, operation, revision } = world.ticket(bytes);
    let (_, hashes) = chain(bytes.u8());
    let (choice, hashes) = (bytes.u8(), &hashes[..]);
    let tokens = |pages: u8| u32::from(pages) * 16;
    let (start_tokens, end_tokens) = (tokens(choice & 3), tokens(choice >> 2 & 15));
    let mode = [Mode::Demand, Mode::Demand, Mode::Prepare, Mode::WarmUp][usize::from(choice >> 6)];
    world.step(match event % 4 {
        0 => Event::Candidates { session, operation, revision, start_tokens, hashes },
        _ => {
            let recovery =
                Recovery { start_tokens, end_tokens, hashes, ranges: &[], deadline_ms: None, mode };
            Event::Recover { session, operation, revision, recovery }
        }
    });
}

fn reserve(world: &mut World, bytes: &mut Bytes<'_>) {
    let t = world.ticket(bytes);
    let (first, hashes) = chain(bytes.u8());
    let choice = bytes.u8();
    let group = group(choice);
    // Mostly the block before the first one; else any block at any depth.
    let (parent, first_depth) = match (choice & 64 != 0, first) {
        (true, _) => (Some(hash(choice & 15)), u32::from(choice >> 2)),
        (false, 0) => (None, 0),
        (false, _) => (Some(hash(first - 1)), u32::from(first)),
    };
    let request = SaveRequest { group, parent, first_depth, hashes: &hashes };
    let (session, operation, revision) = (t.session, t.operation, t.revision);
    world.step(Event::Reserve { session, operation, revision, request });
}

fn forget(world: &mut World, bytes: &mut Bytes<'_>) {
    let choice = bytes.u8();
    let session = world.session(choice & 63);
    let (_, hashes) = chain(bytes.u8());
    world.step(match choice >> 6 {
        0 => Event::Reset { session },
        1 => Event::DropUnleased,
        2 => Event::Forget { session, group: GROUP, hashes: &hashes },
        _ => Event::Forget { session, group: GroupId::PROBE, hashes: &hashes },
    });
}
