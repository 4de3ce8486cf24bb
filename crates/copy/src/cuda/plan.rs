//! Which calls of the driver carry a step out.

use std::collections::VecDeque;
use std::sync::Arc;

use super::abi::DevicePtr;
use super::choice::Choice;
use super::lists::{Listed, MAX_ENTRIES};
use super::registry::{Chunk, Registry, Span};
use super::stream::{Piece, Rows};
use crate::{CopyDirection, Step};

/// Fewer copies than this are not worth a batch or rows: the call itself costs as much.
const MIN_GROUP: usize = 4;

/// Longest pitch of a copy of rows that every device takes.
const MAX_PITCH_BYTES: usize = i32::MAX as usize;

/// One call of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    Plain(Piece),
    Rows(Rows),
    Batch(Vec<Piece>),
    /// By the kernel.
    List(Vec<Listed>),
    /// Through the staging buffer: the host's side is not registered.
    Staged(Piece),
}

impl Op {
    /// Bytes that a copy engine of the device moves for it.
    pub(super) fn engine_bytes(&self) -> usize {
        match self {
            Op::Plain(piece) | Op::Staged(piece) => piece.bytes,
            Op::Rows(rows) => rows.count * rows.first.bytes,
            Op::Batch(pieces) => pieces.iter().map(|piece| piece.bytes).sum(),
            Op::List(_) => 0,
        }
    }
}

/// A registered piece and the number of its chunk among the job's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) piece: Piece,
    pub(super) chunk: usize,
    /// Where the device sees the host's side.
    pub(super) host_on_device: Option<DevicePtr>,
}

/// Cuts a step where registrations begin and end. `pins` collects the chunks, which stay registered while it lives.
pub(super) fn cut(
    step: &Step,
    direction: CopyDirection,
    registry: &Registry,
    staging_bytes: usize,
    pins: &mut Vec<Arc<Chunk>>,
) -> (Vec<Pinned>, VecDeque<Op>) {
    let (mut pinned, mut staged) = (Vec::with_capacity(step.fragments().len()), VecDeque::new());
    for fragment in step.fragments() {
        let mut offset = 0;
        while offset < fragment.bytes() {
            let rest = fragment.part(offset, usize::MAX);
            let (host, device) = match direction {
                CopyDirection::Save => (rest.dst(), rest.src().addr()),
                CopyDirection::Restore => (rest.src().cast_mut(), rest.dst().addr()),
            };
            let piece = |bytes| Piece { host, device: device as u64, bytes };
            match registry.span(host.addr(), rest.bytes()) {
                Span::Pinned(bytes, chunk) => {
                    let host_on_device = chunk.device_address(host.addr());
                    let known = pins.iter().rposition(|pin| Arc::ptr_eq(pin, &chunk));
                    let chunk = known.unwrap_or_else(|| {
                        pins.push(chunk);
                        pins.len() - 1
                    });
                    pinned.push(Pinned { piece: piece(bytes), chunk, host_on_device });
                    offset += bytes;
                }
                Span::Pageable(bytes) => {
                    let bytes = bytes.min(staging_bytes);
                    staged.push_back(Op::Staged(piece(bytes)));
                    offset += bytes;
                }
            }
        }
    }
    (pinned, staged)
}

/// Joins pieces that continue one another on both sides.
fn merge(pieces: &mut Vec<Pinned>) {
    pieces.sort_unstable_by_key(|pinned| pinned.piece.device);
    pieces.dedup_by(|next, before| {
        let end = before.piece.bytes;
        let joins = next.chunk == before.chunk
            && before.piece.device + end as u64 == next.piece.device
            && before.piece.host.addr() + end == next.piece.host.addr();
        if joins {
            before.piece.bytes += next.piece.bytes;
        }
        joins
    });
}

/// The calls for registered pieces, in turns of `turn_bytes`.
pub(super) fn calls(mut pieces: Vec<Pinned>, choice: &Choice, turn_bytes: usize) -> VecDeque<Op> {
    merge(&mut pieces);
    let (large, small): (Vec<_>, Vec<_>) =
        pieces.into_iter().partition(|pinned| pinned.piece.bytes >= choice.plain_min_bytes);
    let mut ops: VecDeque<Op> = large.into_iter().map(|pinned| Op::Plain(pinned.piece)).collect();
    let small = lists(small, choice, &mut ops);
    if choice.uses_batches() && small.len() >= MIN_GROUP {
        let small: Vec<Piece> = small.into_iter().map(|pinned| pinned.piece).collect();
        ops.extend(batches(&small, choice, turn_bytes));
    } else if choice.uses_rows() {
        rows(&small, &mut ops);
    } else {
        ops.extend(small.into_iter().map(|pinned| Op::Plain(pinned.piece)));
    }
    ops
}

/// Takes out what goes by the kernel, and returns the rest.
fn lists(pieces: Vec<Pinned>, choice: &Choice, ops: &mut VecDeque<Op>) -> Vec<Pinned> {
    let limit_bytes = choice.kernel_limit_bytes();
    let fits = |pinned: &Pinned| pinned.host_on_device.is_some() && pinned.piece.bytes < limit_bytes;
    if pieces.iter().filter(|pinned| fits(pinned)).count() < MIN_GROUP {
        return pieces;
    }
    let (mut listed, mut rest) = (Vec::with_capacity(pieces.len()), Vec::new());
    for pinned in pieces {
        match pinned.host_on_device {
            Some(host_on_device) if fits(&pinned) => {
                listed.push(Listed { piece: pinned.piece, host_on_device });
            }
            _ => rest.push(pinned),
        }
    }
    // The kernel cuts all pieces of a list as often as the longest, so those of a list should be alike.
    listed.sort_by_key(|listed| listed.piece.bytes);
    ops.extend(listed.chunks(MAX_ENTRIES).map(|group| Op::List(group.to_vec())));
    rest
}

/// The calls for pieces that the kernel was to copy and cannot.
pub(super) fn unlisted(listed: &[Listed], choice: &Choice, turn_bytes: usize) -> Vec<Op> {
    let pieces: Vec<Piece> = listed.iter().map(|listed| listed.piece).collect();
    if choice.uses_batches() && pieces.len() >= MIN_GROUP {
        batches(&pieces, choice, turn_bytes).collect()
    } else {
        pieces.into_iter().map(Op::Plain).collect()
    }
}

/// Batches of at most so many pieces, each of which ends with the piece that fills a turn.
fn batches<'a>(pieces: &'a [Piece], choice: &'a Choice, turn_bytes: usize) -> impl Iterator<Item = Op> + 'a {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |piece: &&Piece| {
            let before = bytes;
            bytes += piece.bytes;
            before < turn_bytes
        };
        let count = rest.iter().take(choice.batch_max_descriptors).take_while(fits).count();
        let (group, later) = rest.split_at_checked(count).filter(|(group, _)| !group.is_empty())?;
        rest = later;
        Some(Op::Batch(group.to_vec()))
    })
}

/// Groups neighbours at constant distances.
fn rows(pieces: &[Pinned], ops: &mut VecDeque<Op>) {
    let mut at = 0;
    while let Some(first) = pieces.get(at) {
        let run = pieces.get(at + 1).and_then(|second| pitches(*first, *second));
        let count = run.map_or(1, |(host_pitch, device_pitch)| {
            let rest = pieces.get(at..).unwrap_or_default().windows(2);
            let same = |pair: &&[Pinned]| match pair {
                [a, b] => pitches(*a, *b) == Some((host_pitch, device_pitch)),
                _ => false,
            };
            1 + rest.take_while(same).count()
        });
        match run {
            Some((host_pitch, device_pitch)) if count >= MIN_GROUP => {
                ops.push_back(Op::Rows(Rows { first: first.piece, count, host_pitch, device_pitch }));
                at += count;
            }
            _ => {
                ops.push_back(Op::Plain(first.piece));
                at += 1;
            }
        }
    }
}

/// Distances from one piece to the next, where one copy of rows can hold both.
fn pitches(first: Pinned, second: Pinned) -> Option<(usize, usize)> {
    let bytes = first.piece.bytes;
    let host = second.piece.host.addr().checked_sub(first.piece.host.addr())?;
    let device = usize::try_from(second.piece.device.checked_sub(first.piece.device)?).ok()?;
    let fits = |pitch: usize| pitch >= bytes && pitch <= MAX_PITCH_BYTES;
    (second.piece.bytes == bytes && first.chunk == second.chunk && fits(host) && fits(device))
        .then_some((host, device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CopyMethod;

    /// Where the device sees the first byte of the host.
    const HOST_ON_DEVICE: u64 = 1 << 40;

    const CHOICE: Choice = Choice {
        method: CopyMethod::Auto,
        batch: true,
        rows: true,
        batch_max_descriptors: 512,
        kernel: false,
        kernel_below_bytes: 300,
        kernel_unbatched_below_bytes: 1000,
        plain_min_bytes: 1 << 20,
        staging_bytes: 1 << 20,
    };

    fn calls(pieces: Vec<Pinned>, choice: &Choice) -> VecDeque<Op> {
        super::calls(pieces, choice, 1 << 20)
    }

    /// Pieces of `bytes` at `host` and `device` addresses, all in chunk 0.
    fn pieces(places: &[(usize, u64)], bytes: usize) -> Vec<Pinned> {
        let at = |(host, device): &(usize, u64)| {
            let host = std::ptr::without_provenance_mut(*host);
            let piece = Piece { host, device: *device, bytes };
            Pinned { piece, chunk: 0, host_on_device: Some(host.addr() as u64 + HOST_ON_DEVICE) }
        };
        places.iter().map(at).collect()
    }

    #[test]
    fn neighbours_on_both_sides_become_one_copy() {
        let apart = pieces(&[(1300, 9300), (1000, 9000), (1100, 9100), (1200, 9200), (5000, 9400)], 100);
        let ops = calls(apart.clone(), &CHOICE);
        assert_eq!(ops.len(), 2);
        assert_eq!(ops[0], Op::Plain(Piece { bytes: 400, ..apart[1].piece }));
        assert_eq!(ops[1], Op::Plain(apart[4].piece));
    }

    #[test]
    fn neighbours_in_two_registrations_stay_apart() {
        let mut two = pieces(&[(1000, 9000), (1100, 9100)], 100);
        two[1].chunk = 1;
        assert_eq!(calls(two, &CHOICE).len(), 2);
    }

    #[test]
    fn batches_are_cut_at_their_limit_and_large_pieces_stay_out() {
        let places: Vec<_> = (0..1030).map(|at| (1000 + at * 300, 900_000 + at as u64 * 200)).collect();
        let mut small = pieces(&places, 100);
        small.extend(pieces(&[(1 << 30, 1 << 40)], 1 << 20));
        let sizes: Vec<_> = calls(small, &CHOICE)
            .iter()
            .map(|op| match op {
                Op::Batch(pieces) => pieces.len(),
                Op::Plain(piece) => piece.bytes,
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes, [1 << 20, 512, 512, 6]);
    }

    #[test]
    fn a_batch_ends_with_the_piece_that_fills_a_turn() {
        let places: Vec<_> = (0..10).map(|at| (1000 + at * 300, 900_000 + at as u64 * 200)).collect();
        let mut uneven = pieces(&places, 100);
        uneven[4].piece.bytes = 900;
        let sizes = |turn_bytes| {
            let ops = super::calls(uneven.clone(), &CHOICE, turn_bytes);
            let bytes: usize = ops.iter().map(Op::engine_bytes).sum();
            assert_eq!(bytes, 1800, "each piece once");
            ops.iter()
                .map(|op| match op {
                    Op::Batch(pieces) => pieces.len(),
                    other => unreachable!("{other:?}"),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(300), [3, 2, 3, 2]);
        assert_eq!(sizes(1), [1; 10]);
        assert_eq!(sizes(1800), [10]);
    }

    #[test]
    fn without_batches_constant_distances_become_rows() {
        let places: Vec<_> = (0..6).map(|at| (1000 + at * 300, 9000 + at as u64 * 200)).collect();
        let mut all = pieces(&places, 100);
        all.extend(pieces(&[(40_000, 20_000)], 100));
        let choice = Choice { batch: false, ..CHOICE };
        let ops = calls(all.clone(), &choice);
        let rows = Rows { first: all[0].piece, count: 6, host_pitch: 300, device_pitch: 200 };
        assert_eq!(ops, [Op::Rows(rows), Op::Plain(all[6].piece)]);
        let plain = calls(all, &Choice { rows: false, ..choice });
        assert_eq!(plain.len(), 7);
        assert!(plain.iter().all(|op| matches!(op, Op::Plain(_))));
    }

    #[test]
    fn small_pieces_in_registered_memory_go_by_the_kernel() {
        let choice = Choice { kernel: true, ..CHOICE };
        let small: Vec<_> = (0..5).map(|at| (1000 + at * 400, 900_000 + at as u64 * 200)).collect();
        let large: Vec<_> = (0..5).map(|at| (10_000 + at * 500, 910_000 + at as u64 * 500)).collect();
        let mut pieces = [pieces(&small, 100), pieces(&large, 300)].concat();
        // What the device does not reach by itself is for the copy engine.
        pieces[2].host_on_device = None;
        let listed = |pinned: &Pinned| Listed {
            piece: pinned.piece,
            host_on_device: pinned.piece.host.addr() as u64 + HOST_ON_DEVICE,
        };
        let four = [0, 1, 3, 4].map(|at| listed(&pieces[at]));
        let rest = [&pieces[2..3], &pieces[5..]].concat().iter().map(|pinned| pinned.piece).collect();
        assert_eq!(calls(pieces.clone(), &choice), [Op::List(four.to_vec()), Op::Batch(rest)]);
        let alone = Choice { batch: false, rows: false, ..choice };
        let nine = calls(pieces.clone(), &alone);
        assert!(
            matches!(&nine[0], Op::List(listed) if listed.len() == 9),
            "the limit is higher then: {nine:?}"
        );
        assert_eq!(nine[1], Op::Plain(pieces[2].piece));
        pieces.truncate(4);
        assert!(!calls(pieces, &choice).iter().any(|op| matches!(op, Op::List(_))), "three are too few");
    }

    #[test]
    fn lists_are_cut_at_their_limit_and_hold_pieces_of_like_size() {
        let places: Vec<_> = (0..5000).map(|at| (1000 + at * 300, 9_000_000 + at as u64 * 200)).collect();
        let mut mixed = pieces(&places, 100);
        mixed.iter_mut().step_by(2).for_each(|pinned| pinned.piece.bytes = 50);
        let ops = calls(mixed, &Choice { kernel: true, ..CHOICE });
        let sizes: Vec<Vec<usize>> = ops
            .iter()
            .map(|op| match op {
                Op::List(listed) => listed.iter().map(|listed| listed.piece.bytes).collect(),
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_ENTRIES, 5000 - MAX_ENTRIES]);
        assert!(sizes.concat().is_sorted());
    }

    #[test]
    fn what_the_kernel_was_to_copy_is_copied_in_the_next_best_way() {
        let places: Vec<_> = (0..600).map(|at| (1000 + at * 300, 9_000_000 + at as u64 * 200)).collect();
        let ops = Vec::from(calls(pieces(&places, 100), &Choice { kernel: true, ..CHOICE }));
        let [Op::List(listed)] = &ops[..] else { unreachable!("{ops:?}") };
        let batches = unlisted(listed, &CHOICE, 1 << 20);
        assert!(matches!(&batches[..], [Op::Batch(a), Op::Batch(b)] if (a.len(), b.len()) == (512, 88)));
        let plain = unlisted(listed, &Choice { batch: false, ..CHOICE }, 1 << 20);
        assert!(plain.len() == 600 && plain.iter().all(|op| matches!(op, Op::Plain(_))));
    }

    #[test]
    fn what_goes_backwards_on_the_host_is_no_rows() {
        let places: Vec<_> = (0..6).map(|at| (9000 - at * 300, 9000 + at as u64 * 200)).collect();
        let choice = Choice { batch: false, ..CHOICE };
        assert!(calls(pieces(&places, 100), &choice).iter().all(|op| matches!(op, Op::Plain(_))));
    }

    #[test]
    fn the_method_asked_for_is_the_one_used() {
        let places: Vec<_> = (0..6).map(|at| (1000 + at * 300, 9000 + at as u64 * 200)).collect();
        let first = |method| calls(pieces(&places, 100), &Choice { method, ..CHOICE }).pop_front();
        assert!(matches!(first(CopyMethod::Auto), Some(Op::Batch(_))));
        assert!(matches!(first(CopyMethod::Batch), Some(Op::Batch(_))));
        assert!(matches!(first(CopyMethod::Rows), Some(Op::Rows(_))));
        assert!(matches!(first(CopyMethod::Plain), Some(Op::Plain(_))));
        assert!(matches!(first(CopyMethod::Kernel), Some(Op::Plain(_))), "where it is not there");
        let kernel = |method| Choice { method, kernel: true, ..CHOICE };
        let first = |method| calls(pieces(&places, 100), &kernel(method)).pop_front();
        for (method, listed) in [
            (CopyMethod::Auto, true),
            (CopyMethod::Kernel, true),
            (CopyMethod::Batch, false),
            (CopyMethod::Rows, false),
            (CopyMethod::Plain, false),
        ] {
            assert_eq!(matches!(first(method), Some(Op::List(_))), listed, "{method}");
        }
    }
}
