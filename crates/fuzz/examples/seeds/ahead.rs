//! Stories of the slower tier and of reading ahead.

use crate::Files;

/// A pool of 17 slots in one segment, in front of a tier; a budget of 16 pages.
const ROOMY: [u8; 2] = [0x4f, 0x0f];
/// As that, and one page is written at a time.
const NARROW: [u8; 2] = [0xcf, 0x0f];
/// As `ROOMY`, and a demand may submit two batches of one page.
const BATCHED: [u8; 2] = [0x4f, 0x4f];
/// As `ROOMY`, and reads end after 50 ms.
const HASTY: [u8; 2] = [0x4f, 0x8f];
/// Four slots in one segment, in front of a tier.
const SMALL: [u8; 2] = [0x42, 0x0f];
/// Four segments of four slots, in front of a tier.
const PIECES: [u8; 2] = [0x7f, 0x0f];
/// No tier, a budget of two pages.
const DRAM: [u8; 2] = [0x0f, 1];

/// A client that is scheduler and worker, active, with one segment.
const SOLO: &[u8] = &[0, 3, 0, 3, 0, 18, 0];
/// A scheduler and two workers, active, with a segment of each.
const PAIR: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 2, 0, 3, 0, 3, 1, 18, 0, 18, 0];
/// Two instances of one namespace: of one client, and of a scheduler and its worker.
const TWO: &[u8] = &[0, 3, 0, 0, 4, 0, 0, 5, 0, 3, 2, 3, 0, 18, 0, 18, 0];
const WRITTEN: &[u8] = &[200, 0];
const WRITE_FAILED: &[u8] = &[200, 128];
const READ: &[u8] = &[202, 0];
const READ_FAILED: &[u8] = &[202, 128];
const EXTENT_LOST: &[u8] = &[204, 0];
/// Of the newest operation.
const KEEP: &[u8] = &[205, 0xf0];
/// Of the newest query.
const CLAIM: &[u8] = &[206, 0];
const DROP: &[u8] = &[17, 0x40, 0];
const RESTORE: &[u8] = &[10, 0xf0, 0];
const RELEASE: &[u8] = &[10, 0xf0, 1];
const CANCEL: &[u8] = &[10, 0xf0, 2];
const COPY_DONE: &[u8] = &[11, 0, 0xf0];
const HALF_A_SECOND: &[u8] = &[19, 19];
const A_SECOND: &[u8] = &[19, 20];
const TWO_SECONDS: &[u8] = &[19, 21];
const FORGET_FIRST: &[u8] = &[17, 0x80, 0x01];
const FORGET_SECOND: &[u8] = &[17, 0x80, 0x11];
const RESET: &[u8] = &[17, 0, 0];
/// All that is there, and what the check finds of the oldest of it.
const SCRUB: &[u8] = &[251, 252, 255];
const SCRUBBED: &[u8] = &[251, 254, 0];
const SCRUBBED_BAD: &[u8] = &[251, 254, 128];

/// Bits of a query.
const PREPARE: u8 = 0x08;
const WARM_UP: u8 = 0x10;
const STRICT: u8 = 0x20;
const DEADLINE: u8 = 0x40;
const FULL_PREFIX: u8 = 0x80;
const MEMORY_ONLY: u8 = 0x18;

/// Pages of a chain from `first` on, reserved and committed.
fn save(first: u8, count: u8) -> Vec<u8> {
    let commits = (0..count).rev().flat_map(|back| [13, 0, back]);
    [7, 0, first << 4 | count, 0].into_iter().chain(commits).collect()
}

/// The first pages of a chain, in the tier alone.
fn store(count: u8) -> Vec<u8> {
    [save(0, count), WRITTEN.repeat(usize::from(count)), DROP.to_vec()].concat()
}

fn ask(first: u8, count: u8, choice: u8) -> Vec<u8> {
    vec![4, 0, first << 4 | count, choice]
}

fn story(limits: [u8; 2], parts: &[&[u8]]) -> Vec<u8> {
    [&limits, parts.concat().as_slice()].concat()
}

pub(crate) fn files() -> Files {
    [
        budget(),
        writes(),
        scrubs(),
        reads(),
        ends_of_reads(),
        preparations(),
        warm_ups(),
        shards(),
        recoveries(),
        findings(),
    ]
    .concat()
}

/// Both groups of a client, for a boundary of two pages.
fn save_both() -> Vec<u8> {
    let window = [7, 0, 2, 5, 18, 0, 7, 0, 2, 5, 13, 0, 1, 13, 0, 0];
    [save(0, 2).as_slice(), &window].concat()
}

fn recoveries() -> Files {
    let (to_two, ahead) = ([249, 0, 2, 2 << 2], [249, 0, 2, 2 << 2 | 0x80]);
    let candidates = [248, 0, 3, 0];
    vec![
        ("candidates", story(PIECES, &[SOLO, &candidates, &save_both(), &candidates])),
        ("recovered", story(PIECES, &[SOLO, &save_both(), &to_two, RESTORE, COPY_DONE, RELEASE])),
        ("recovery_incomplete", story(PIECES, &[SOLO, &save(0, 2), &to_two])),
        ("recovery_past_the_batch", story(PIECES, &[SOLO, &save_both(), &[249, 0, 2, 5 << 2]])),
        (
            "recovery_claimed",
            story(
                PIECES,
                &[SOLO, &save_both(), &WRITTEN.repeat(4), DROP, &ahead, &READ.repeat(4), &[249, 0xf0, 2, 8]],
            ),
        ),
        ("recovery_claimed_as_prefix", story(PIECES, &[SOLO, &save_both(), &ahead, &[4, 0xf0, 2, 0]])),
        ("saved_unchained", story(PIECES, &[SOLO, &[18, 0, 7, 0, 0x12, 5]])),
    ]
}

/// The tier tells of what an earlier run left: pages of one shard, of two, and of another namespace.
fn findings() -> Files {
    let found = |choice: u8| [251, 0, choice];
    let (all, impaired, whole) = ([251, 3, 0], [251, 2, 0], [251, 2, 3]);
    vec![
        ("found_and_read", story(ROOMY, &[SOLO, &found(0), &all, &ask(0, 1, 0), READ, RESTORE, COPY_DONE])),
        ("found_again", story(ROOMY, &[SOLO, &found(0), &found(0), &all])),
        ("found_after_a_reset", story(ROOMY, &[SOLO, &found(0), RESET, &found(1), &all])),
        ("found_after_it_was_forgotten", story(ROOMY, &[SOLO, FORGET_FIRST, &found(0), &found(1), &all])),
        ("found_late", story(ROOMY, &[SOLO, &all, &found(0)])),
        ("found_partly", story(ROOMY, &[PAIR, &found(0xc0), &found(0xc1), &found(0xd1), &all])),
        ("found_a_shard_that_cannot_be", story(ROOMY, &[SOLO, &found(0x10), &all])),
        ("moved", story(ROOMY, &[SOLO, &store(2), &[251, 1, 0], &ask(0, 2, 0), READ, READ])),
        ("moved_and_forgotten", story(ROOMY, &[SOLO, &store(1), FORGET_FIRST, &[251, 1, 0]])),
        (
            "impaired",
            story(
                ROOMY,
                &[SOLO, &store(2), &impaired, &ask(0, 2, 0), &save(2, 1), &whole, &ask(0, 2, 0), READ, READ],
            ),
        ),
    ]
}

fn budget() -> Files {
    let two = ask(0, 2, 0);
    vec![
        ("lifetime", story(DRAM, &[SOLO, &save(0, 2), &two, &two, TWO_SECONDS])),
        ("admitted_later", story(DRAM, &[SOLO, &save(0, 2), &two, &two, &[10, 0xf1, 1], RELEASE])),
    ]
}

fn writes() -> Files {
    vec![
        ("write_failed", story(ROOMY, &[SOLO, &save(0, 1), WRITE_FAILED])),
        ("written_on_use", story(NARROW, &[SOLO, &save(0, 2), WRITTEN, &ask(0, 2, 0), WRITTEN])),
        ("write_dropped", story(NARROW, &[SOLO, &save(0, 2), WRITTEN])),
        ("forgotten_while_written", story(ROOMY, &[SOLO, &save(0, 1), FORGET_FIRST, WRITTEN])),
        ("reset_while_written", story(ROOMY, &[SOLO, &save(0, 2), WRITTEN, RESET, WRITTEN])),
        ("extent_lost", story(ROOMY, &[SOLO, &store(1), EXTENT_LOST, &ask(0, 1, 0)])),
        ("stray_ends", story(ROOMY, &[SOLO, &save(0, 1), WRITTEN, &[207, 0, 0, 207, 0, 1, 207, 0xc0, 1]])),
    ]
}

/// The check of memory.
fn scrubs() -> Files {
    let one = ask(0, 1, 0);
    vec![
        ("scrubbed", story(DRAM, &[SOLO, &save(0, 2), SCRUB, SCRUBBED, SCRUBBED, SCRUB])),
        ("scrub_found_bad", story(ROOMY, &[SOLO, &save(0, 1), WRITTEN, SCRUB, SCRUBBED_BAD, &one, READ])),
        ("scrub_found_bad_while_written", story(ROOMY, &[SOLO, &save(0, 1), SCRUB, SCRUBBED_BAD, WRITTEN])),
        (
            "scrub_found_bad_while_leased",
            story(ROOMY, &[SOLO, &save(0, 1), &one, SCRUB, SCRUBBED_BAD, RESTORE]),
        ),
        ("forgotten_while_scrubbed", story(DRAM, &[SOLO, &save(0, 2), SCRUB, DROP, SCRUBBED, SCRUBBED_BAD])),
    ]
}

fn reads() -> Files {
    let (one, two, three) = (ask(0, 1, 0), ask(0, 2, 0), ask(0, 3, 0));
    vec![
        ("read_back", story(ROOMY, &[SOLO, &store(2), &three, READ, READ, RESTORE, COPY_DONE, RELEASE])),
        ("read_shared", story(ROOMY, &[SOLO, &store(1), &one, &one, CANCEL, READ])),
        ("read_failed", story(ROOMY, &[SOLO, &store(2), &two, READ, READ_FAILED])),
        ("pending_while_read", story(ROOMY, &[SOLO, &store(1), &one, &save(0, 1), READ])),
        (
            "read_of_what_was_saved_again",
            story(
                ROOMY,
                &[SOLO, &store(1), &[7, 0, 1, 0], &one, &[13, 0, 0], READ, DROP, RESTORE, COPY_DONE],
            ),
        ),
        (
            "read_waits_for_a_segment",
            story(PIECES, &[SOLO, &[18, 0], &store(4), &save(4, 4), &one, &[18, 0], READ]),
        ),
        ("read_without_memory", story(SMALL, &[SOLO, &store(1), &save(4, 4), &one])),
        ("batches", story(BATCHED, &[SOLO, &store(3), &three, READ, READ])),
        (
            "memory_only",
            story(
                ROOMY,
                &[SOLO, &store(2), &one, READ, RELEASE, &ask(0, 2, MEMORY_ONLY), RESTORE, COPY_DONE],
            ),
        ),
        ("nothing_in_memory", story(ROOMY, &[SOLO, &store(2), &ask(0, 2, MEMORY_ONLY), &two, READ])),
        ("memory_and_tier", story(ROOMY, &[SOLO, &store(2), &one, READ, &two, READ, RESTORE])),
    ]
}

fn ends_of_reads() -> Files {
    let (one, by_deadline) = (ask(0, 1, 0), ask(0, 2, DEADLINE));
    vec![
        ("prefix_at_deadline", story(ROOMY, &[SOLO, &store(2), &by_deadline, READ, A_SECOND, RESTORE, READ])),
        ("nothing_at_deadline", story(ROOMY, &[SOLO, &store(2), &by_deadline, A_SECOND, READ, READ])),
        ("read_timeout", story(HASTY, &[SOLO, &store(2), &ask(0, 2, 0), READ, A_SECOND, READ])),
        ("cancelled_while_reading", story(ROOMY, &[SOLO, &store(1), &one, CANCEL, READ])),
        ("closed_while_reading", story(ROOMY, &[SOLO, &store(1), &one, &[1, 0, 2, 0], READ])),
        ("forgotten_while_read", story(ROOMY, &[SOLO, &store(1), &one, FORGET_FIRST, READ])),
        ("extent_lost_while_read", story(ROOMY, &[SOLO, &store(1), &one, EXTENT_LOST, READ_FAILED])),
        (
            "read_overdue",
            story(ROOMY, &[SOLO, &store(2), &ask(0, 2, 0), READ, &[251, 3, 128], &ask(0, 2, 0), READ]),
        ),
        ("strict_miss", story(ROOMY, &[SOLO, &store(1), &ask(0, 2, STRICT)])),
        ("strict_read_failed", story(ROOMY, &[SOLO, &store(2), &ask(0, 2, STRICT), READ, READ_FAILED])),
        (
            "waits_for_full_prefix",
            story(
                BATCHED,
                &[SOLO, &store(3), &ask(0, 3, FULL_PREFIX | DEADLINE), READ, A_SECOND, READ, READ],
            ),
        ),
    ]
}

fn preparations() -> Files {
    let two = ask(0, 2, PREPARE);
    let prepared = [SOLO, &store(2), &two, READ, READ].concat();
    let with = |parts: &[&[u8]]| story(ROOMY, &[&prepared, &parts.concat()]);
    vec![
        ("prepared_and_claimed", with(&[CLAIM, RESTORE, COPY_DONE, RELEASE])),
        ("claimed_while_read", story(ROOMY, &[SOLO, &store(2), &two, READ, CLAIM, READ, RELEASE])),
        ("claim_of_other_pages", with(&[&[4, 0xf0, 1, 0]])),
        ("forgotten_while_prepared", with(&[FORGET_SECOND, CLAIM, RESTORE])),
        ("all_forgotten_while_prepared", with(&[FORGET_FIRST, CLAIM])),
        ("strict_preparation_falls_short", story(ROOMY, &[SOLO, &store(1), &ask(0, 2, PREPARE | STRICT)])),
        (
            "strict_preparation_read_failed",
            story(ROOMY, &[SOLO, &store(2), &ask(0, 2, PREPARE | STRICT), READ, READ_FAILED, CLAIM]),
        ),
        (
            "strict_preparation_forgotten",
            story(ROOMY, &[SOLO, &store(2), &ask(0, 2, PREPARE | STRICT), READ, READ, FORGET_SECOND, CLAIM]),
        ),
        ("kept", with(&[HALF_A_SECOND, KEEP, HALF_A_SECOND, CLAIM])),
        ("preparation_expired", with(&[A_SECOND, KEEP, CLAIM])),
        ("preparation_expired_while_read", story(ROOMY, &[SOLO, &store(2), &two, READ, A_SECOND, READ])),
        ("range_too_large_to_prepare", story([0x4f, 0], &[SOLO, &store(2), &two])),
        ("too_many_preparations", story(ROOMY, &[SOLO, &store(3), &two, &two, &two])),
        (
            "preparation_yields",
            story([0x4f, 1], &[SOLO, &store(3), &ask(0, 2, 0), &ask(2, 1, PREPARE), READ, READ]),
        ),
    ]
}

fn warm_ups() -> Files {
    let two = ask(0, 2, WARM_UP);
    vec![
        ("warmed_up_in_vain", story(ROOMY, &[SOLO, &store(2), &two, READ, READ, DROP])),
        (
            "warmed_up_and_restored",
            story(ROOMY, &[SOLO, &store(2), &two, READ, READ, &ask(0, 2, 0), RESTORE]),
        ),
        (
            "demand_joins_a_warm_up",
            story(ROOMY, &[SOLO, &store(3), &ask(0, 3, WARM_UP), &ask(0, 2, 0), READ, READ, READ]),
        ),
        ("warm_up_claimed", story(ROOMY, &[SOLO, &store(2), &two, CLAIM, CANCEL, READ, READ])),
        ("warm_up_outlived", story(ROOMY, &[SOLO, &store(2), &two, READ, &[19, 23], READ])),
    ]
}

/// Pages of two shards, and pages of two instances.
fn shards() -> Files {
    // The scheduler is the third newest session; both shards of one page are written by their workers.
    let both: &[u8] = &[7, 2, 1, 0, 13, 1, 1, 13, 0, 0];
    let asked: &[u8] = &[4, 2, 1, 0];
    let stored = [both, WRITTEN, WRITTEN, DROP].concat();
    let shared: &[u8] = &[7, 2, 1, 0, 13, 2, 0];
    vec![
        ("one_shard_is_not_read", story(PIECES, &[PAIR, &stored, asked, READ, READ_FAILED])),
        ("one_shard_is_not_written", story(PIECES, &[PAIR, both, WRITTEN, WRITE_FAILED])),
        ("one_shard_is_lost_early", story(PIECES, &[PAIR, both, WRITTEN, EXTENT_LOST, WRITTEN])),
        ("one_shard_is_lost", story(PIECES, &[PAIR, &stored, EXTENT_LOST, asked])),
        (
            "read_for_two_instances",
            story(PIECES, &[TWO, shared, WRITTEN, DROP, asked, &[4, 1, 1, 0], READ, RESTORE]),
        ),
    ]
}
