//! The copy kernel's own text, carried out thread by thread: which bytes it reads and writes, without a device.
#![allow(clippy::unwrap_used)]

mod ptx;

use ptx::{Fault, Memory, Program};

const TEXT: &str = include_str!("../src/cuda/copy_list.ptx");

const LIST: u64 = 0x7000_0000;
const SOURCE: u64 = 0x10_0000_0000;
const TARGET: u64 = 0x20_0000_0000;

/// What a list asks for: offset in the source, offset in the target, bytes.
type Copy = (usize, usize, usize);

/// What the target holds where nothing is copied.
const OLD: u8 = 0xEE;

/// Sizes around every border: words of 4 and of 16 bytes, what 32 lanes take at once, slices.
const SIZES: [usize; 25] = [
    1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 127, 128, 131, 496, 511, 512, 513, 1000, 3584, 4080, 4095, 4096, 4097,
    8192, 9221,
];
/// Offsets of source and target: words of 16 bytes, of 4, of one.
const SHIFTS: [(usize, usize); 8] = [(0, 0), (16, 64), (4, 4), (0, 8), (12, 4), (2, 2), (1, 1), (0, 3)];

fn source(bytes: usize) -> Vec<u8> {
    (1..=bytes as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0] & !1).collect()
}

/// Every size with every shift, each with room around it.
fn all() -> Vec<Copy> {
    let shapes = SIZES.into_iter().flat_map(|bytes| SHIFTS.map(|(from, to)| (from, to, bytes)));
    let mut next = 64;
    let mut copies = Vec::new();
    for (from, to, bytes) in shapes {
        copies.push((next + from, next + to, bytes));
        next += (bytes + 192).next_multiple_of(64);
    }
    copies
}

/// Runs `text` on `copies`, and says whether exactly the bytes asked for have arrived, each written once.
fn copies_exactly(text: &str, copies: &[Copy], grid: (u64, u64)) -> Result<bool, Fault> {
    let extent = copies.iter().map(|(from, to, bytes)| from.max(to) + bytes).max().unwrap() + 256;
    let (sent, mut expected) = (source(extent), vec![OLD; extent]);
    let mut list = Vec::new();
    for (from, to, bytes) in copies {
        expected[*to..to + bytes].copy_from_slice(&sent[*from..from + bytes]);
        for word in [SOURCE + *from as u64, TARGET + *to as u64, *bytes as u64, 0] {
            list.extend(word.to_le_bytes());
        }
    }
    let slices = copies.iter().map(|(.., bytes)| bytes.div_ceil(4096)).max().unwrap() as u64;
    let mut memory = Memory::default();
    memory.add(LIST, list.clone());
    memory.add(SOURCE, sent.clone());
    memory.add(TARGET, vec![OLD; extent]);
    let parameters = [("list", LIST), ("count", copies.len() as u64), ("slices", slices)];
    Program::parse(text).run(grid, &parameters, &mut memory)?;
    let unchanged = memory.bytes(0) == list && memory.bytes(1) == sent;
    Ok(unchanged && memory.bytes(2) == expected && !memory.is_raced())
}

#[test]
fn every_size_and_place_is_copied_exactly() {
    assert_eq!(copies_exactly(TEXT, &all(), (2, 64)), Ok(true));
}

#[test]
fn any_grid_of_whole_warps_copies_all() {
    let copies = all()[..SHIFTS.len() * 9].to_vec();
    for grid in [(1, 32), (1, 256), (3, 96), (16, 256)] {
        assert_eq!(copies_exactly(TEXT, &copies, grid), Ok(true), "{grid:?}");
        assert_eq!(copies_exactly(TEXT, &copies[..1], grid), Ok(true), "{grid:?}: more warps than slices");
    }
}

/// Controls: each of these slips in the text is seen.
#[test]
fn slips_in_the_text_are_seen() {
    let slips = [
        ("{%src, %dst}", "{%dst, %src}"),
        ("%fragment, 32, %list", "%fragment, 24, %list"),
        ("[%entry+16]", "[%entry+24]"),
        ("mul.wide.u32 %skip, %slice, 4096", "mul.wide.u32 %skip, %slice, 2048"),
        ("min.u64 %rest, %rest, 4096", "min.u64 %rest, %rest, 8192"),
        ("and.b64 %rest, %align, 15", "and.b64 %rest, %align, 7"),
        ("and.b64 %rest, %align, 3", "and.b64 %rest, %align, 1"),
        ("setp.le.u32 %has7, %end, %left", "setp.le.u32 %has7, %at, %left"),
        ("st.global.v4.u32 [%to+3584]", "st.global.v4.u32 [%to+3072]"),
        ("ld.global.cs.v4.u32 {%a5, %b5, %c5, %d5}", "ld.global.cs.v4.u32 {%a5, %c5, %b5, %d5}"),
        ("and.b32 %at, %left, 0xfffffff0", "and.b32 %at, %left, 0xfffffff8"),
        ("and.b32 %at, %left, 0xfffffffc", "and.b32 %at, %left, 0xfffffffe"),
        ("add.u32 %at, %at, 128", "add.u32 %at, %at, 64"),
        ("add.u32 %at, %at, 32;", "add.u32 %at, %at, 64;"),
        ("setp.ge.u32 %over, %at, %left", "setp.gt.u32 %over, %at, %left"),
        ("mul.lo.u32 %stride, %blocks, %warps", "mov.u32 %stride, %warps"),
        ("add.u64 %dst, %dst, %skip;", ""),
    ];
    let copies = all();
    for (right, wrong) in slips {
        assert_eq!(TEXT.matches(right).count(), 1, "{right}");
        let outcome = copies_exactly(&TEXT.replace(right, wrong), &copies, (2, 64));
        assert_ne!(outcome, Ok(true), "{wrong}");
    }
}
