//! Which calls of the driver carry a step out.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::abi::DevicePtr;
use super::lists::{Listed, MAX_ENTRIES};
use super::registry::{Chunk, Registry, Span};
use super::stream::{Piece, Rows};
use crate::{CopyDirection, Step};

/// Fewer copies than this are not worth a batch or rows: the call itself costs as much.
const MIN_GROUP: usize = 4;

/// Longest pitch of a copy of rows that every device takes.
const MAX_PITCH_BYTES: usize = i32::MAX as usize;

/// How fragments below `plain_min_bytes` are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMethod {
    /// In batches where the driver's batch call has passed its self-test, else as rows, else one by one.
    Auto,
    /// One asynchronous copy each.
    Plain,
    /// As rows (`cuMemcpy2DAsync`) where blocks and pages lie at constant distances, else one by one.
    Rows,
    /// In batches, else one by one.
    Batch,
    /// By a kernel that reads and writes registered memory, else one by one.
    Kernel,
}

impl CopyMethod {
    const ALL: [(CopyMethod, &str); 5] = [
        (CopyMethod::Auto, "auto"),
        (CopyMethod::Plain, "plain"),
        (CopyMethod::Rows, "rows"),
        (CopyMethod::Batch, "batch"),
        (CopyMethod::Kernel, "kernel"),
    ];
}

impl fmt::Display for CopyMethod {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = CopyMethod::ALL.into_iter().find(|(method, _)| method == self);
        out.pad(named.map_or("", |(_, name)| name))
    }
}

/// A name that is none of the methods'.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no copy method: use auto, plain, rows, batch or kernel")]
pub struct UnknownMethod {
    /// What was given.
    pub name: String,
}

impl FromStr for CopyMethod {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<CopyMethod, UnknownMethod> {
        let named = CopyMethod::ALL.into_iter().find(|(_, known)| *known == name);
        named.map(|(method, _)| method).ok_or_else(|| UnknownMethod { name: name.to_owned() })
    }
}

/// What the planner may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) method: CopyMethod,
    pub(super) batch: bool,
    pub(super) rows: bool,
    pub(super) batch_max_descriptors: usize,
    /// Smaller pieces go by the kernel; 0 where it is not used.
    pub(super) kernel_below_bytes: usize,
    pub(super) plain_min_bytes: usize,
    pub(super) staging_bytes: usize,
}

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

/// The calls for registered pieces.
pub(super) fn calls(mut pieces: Vec<Pinned>, choice: &Choice) -> VecDeque<Op> {
    merge(&mut pieces);
    let (large, small): (Vec<_>, Vec<_>) =
        pieces.into_iter().partition(|pinned| pinned.piece.bytes >= choice.plain_min_bytes);
    let mut ops: VecDeque<Op> = large.into_iter().map(|pinned| Op::Plain(pinned.piece)).collect();
    let small = lists(small, choice, &mut ops);
    let wants_batch = matches!(choice.method, CopyMethod::Auto | CopyMethod::Batch) && choice.batch;
    let wants_rows = matches!(choice.method, CopyMethod::Auto | CopyMethod::Rows) && choice.rows;
    if wants_batch && small.len() >= MIN_GROUP {
        for group in small.chunks(choice.batch_max_descriptors) {
            ops.push_back(Op::Batch(group.iter().map(|pinned| pinned.piece).collect()));
        }
    } else if wants_rows {
        rows(&small, &mut ops);
    } else {
        ops.extend(small.into_iter().map(|pinned| Op::Plain(pinned.piece)));
    }
    ops
}

/// Takes out what goes by the kernel, and returns the rest.
fn lists(pieces: Vec<Pinned>, choice: &Choice, ops: &mut VecDeque<Op>) -> Vec<Pinned> {
    let fits =
        |pinned: &Pinned| pinned.host_on_device.is_some() && pinned.piece.bytes < choice.kernel_below_bytes;
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
pub(super) fn unlisted(listed: &[Listed], choice: &Choice) -> Vec<Op> {
    let pieces: Vec<Piece> = listed.iter().map(|listed| listed.piece).collect();
    if choice.batch && pieces.len() >= MIN_GROUP {
        pieces.chunks(choice.batch_max_descriptors).map(|group| Op::Batch(group.to_vec())).collect()
    } else {
        pieces.into_iter().map(Op::Plain).collect()
    }
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

    /// Where the device sees the first byte of the host.
    const HOST_ON_DEVICE: u64 = 1 << 40;

    const CHOICE: Choice = Choice {
        method: CopyMethod::Auto,
        batch: true,
        rows: true,
        batch_max_descriptors: 512,
        kernel_below_bytes: 0,
        plain_min_bytes: 1 << 20,
        staging_bytes: 1 << 20,
    };

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
    }
}
